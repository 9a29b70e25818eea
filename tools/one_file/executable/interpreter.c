/* The interpreter of the one-file executable, all of it static; its modules are the zip archive in the file. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <nss.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <zstd.h>

/* A static program can load nothing; ctypes asks for functions of the C library and of libzstd (zstandard.py) all the
   same. */
static char loaded;
static const struct { const char *name; void *function; } FUNCTIONS[] = {
    {"memmem", (void *)memmem},
    {"prctl", (void *)prctl},
    {"ZSTD_createDStream", (void *)ZSTD_createDStream},
    {"ZSTD_freeDStream", (void *)ZSTD_freeDStream},
    {"ZSTD_decompressStream", (void *)ZSTD_decompressStream},
    {"ZSTD_isError", (void *)ZSTD_isError},
    {"ZSTD_getFrameContentSize", (void *)ZSTD_getFrameContentSize},
};
void *__wrap_dlopen(const char *name, int flags) { (void)flags; return name == NULL ? &loaded : NULL; }
int __wrap_dlclose(void *handle) { (void)handle; return 0; }
char *__wrap_dlerror(void) { return "a static program loads no libraries"; }
void *__wrap_dlsym(void *handle, const char *name) {
    (void)handle;
    for (size_t at = 0; at < sizeof FUNCTIONS / sizeof *FUNCTIONS; at++)
        if (strcmp(name, FUNCTIONS[at].name) == 0) return FUNCTIONS[at].function;
    return NULL;
}

/* Certificates lie elsewhere in each distribution. SSL_CERT_FILE and SSL_CERT_DIR go first, as in any OpenSSL. */
static const char *const BUNDLES[] = {
    "/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu, Alpine, Arch */
    "/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, RHEL */
    "/etc/ssl/ca-bundle.pem",             /* SUSE */
    "/etc/ssl/cert.pem",                  /* Alpine without ca-certificates */
};
const char *__wrap_X509_get_default_cert_file(void) {
    for (size_t at = 0; at < sizeof BUNDLES / sizeof *BUNDLES; at++)
        if (access(BUNDLES[at], R_OK) == 0) return BUNDLES[at];
    return BUNDLES[0];
}
const char *__wrap_X509_get_default_cert_dir(void) { return "/etc/ssl/certs"; }

static void check(PyStatus status) {
    if (PyStatus_Exception(status)) Py_ExitStatusException(status);
}

int main(int argc, char **argv) {
    /* Other sources (systemd, mdns, sss) are shared objects of the host's C library. */
    static const char *const DATABASES[] = {"passwd", "group", "services", "protocols", "networks"};
    for (size_t at = 0; at < sizeof DATABASES / sizeof *DATABASES; at++) __nss_configure_lookup(DATABASES[at], "files");
    __nss_configure_lookup("hosts", "files dns");

    const char *path = getenv("PDCTL_ONE_FILE"); /* from the loader */
    if (path == NULL || *path != '/' || strlen(path) > 4095) {
        fprintf(stderr, "error: this program is started by the file it is part of\n");
        return 4;
    }

    /* UTF-8 whatever the locale is: others need tables that only the host's C library can load. */
    PyPreConfig before;
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    check(Py_PreInitialize(&before));

    PyConfig config;
    PyConfig_InitIsolatedConfig(&config);
    config.site_import = 0;
    config.write_bytecode = 0;
    config.install_signal_handlers = 1;
    config.pathconfig_warnings = 0;
    config.module_search_paths_set = 1;
    const char *unbuffered = getenv("PYTHONUNBUFFERED");
    if (unbuffered != NULL && *unbuffered) config.buffered_stdio = 0;
    wchar_t *own = Py_DecodeLocale(path, NULL);
    unsetenv("PDCTL_ONE_FILE");
    wchar_t library[4200];
    if (own == NULL || swprintf(library, 4200, L"%ls/lib", own) < 0) return 4;
    check(PyConfig_SetString(&config, &config.executable, own));
    check(PyConfig_SetString(&config, &config.base_executable, own));
    check(PyConfig_SetString(&config, &config.prefix, own));
    check(PyConfig_SetString(&config, &config.exec_prefix, own));
    check(PyConfig_SetString(&config, &config.base_prefix, own));
    check(PyConfig_SetString(&config, &config.base_exec_prefix, own));
    check(PyConfig_SetString(&config, &config.platlibdir, L"lib"));
    check(PyWideStringList_Append(&config.module_search_paths, library));
    check(PyWideStringList_Append(&config.module_search_paths, own));
    check(PyConfig_SetString(&config, &config.run_command, L"import pdctl_start\npdctl_start.main()\n"));
    check(PyConfig_SetBytesArgv(&config, argc, argv));
    check(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
    return Py_RunMain();
}
