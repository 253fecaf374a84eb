/* Linked into programs of address-sanitizer builds: libraries stay loaded, so that the leak report can name the plug-ins of
   Open MPI and lsan.supp can match them. */
int dlclose(void* handle) {
  (void)handle;
  return 0;
}
