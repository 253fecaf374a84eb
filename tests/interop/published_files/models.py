"""Modules of diffusers that published_files_test.py records."""

import torch
from diffusers import ZImageTransformer2DModel

LATENT = (16, 1, 128, 128)  # of a picture of 1024 x 1024 pixels
CAPTION_WIDTH = 2560


class Trained(ZImageTransformer2DModel):
    """Takes batches in place of lists, and gives the first picture."""

    def forward(self, latents, timestep, captions):
        return super().forward(list(latents.unbind(0)), timestep, list(captions.unbind(0)), return_dict=False)[0]


Trained.__name__ = ZImageTransformer2DModel.__name__


def z_image():
    return Trained()  # the defaults are the published size


def inputs(batch, sequence):
    return {
        "latents": torch.zeros(batch, *LATENT, dtype=torch.bfloat16),
        "timestep": torch.zeros(batch, dtype=torch.bfloat16),
        "captions": torch.zeros(batch, sequence, CAPTION_WIDTH, dtype=torch.bfloat16),
    }
