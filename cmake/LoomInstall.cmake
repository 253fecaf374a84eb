# Install rules follow with the program.
