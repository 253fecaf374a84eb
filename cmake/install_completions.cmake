# Installs what `shardloom completion SHELL` prints where the shell looks for it. Run by `cmake --install` with PROGRAM,
# STAGE, a folder for the scripts, and SHARE, share/ below the prefix.
function(install_completion shell folder name)
  set(script "${STAGE}/completions/${name}")
  file(MAKE_DIRECTORY "${STAGE}/completions")
  execute_process(COMMAND "${PROGRAM}" completion "${shell}" OUTPUT_FILE "${script}" COMMAND_ERROR_IS_FATAL ANY)
  file(INSTALL "${script}" DESTINATION "${CMAKE_INSTALL_PREFIX}/${SHARE}/${folder}")
endfunction()

# Debian's zsh reads the folders of packages below /usr, and site-functions below /usr/local.
set(zsh_folder zsh/site-functions)
if(CMAKE_INSTALL_PREFIX MATCHES "/usr$")
  set(zsh_folder zsh/vendor-completions)
endif()
install_completion(bash bash-completion/completions shardloom)
install_completion(zsh "${zsh_folder}" _shardloom)
install_completion(fish fish/vendor_completions.d shardloom.fish)
