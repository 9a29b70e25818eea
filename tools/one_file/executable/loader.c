/* The outer program of the one-file executable: decompresses the interpreter into memory and becomes it.
   The file: this program, the interpreter (zstd), 16 bytes with its two sizes, the zip archive of the modules. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zstd.h>

/* Written over by tools.build_executable: where the compressed interpreter begins, and its sizes. */
volatile const struct { char mark[16]; uint64_t at, packed, size; } LAYOUT = {"PDCTL-LAYOUT-V1", 0, 0, 0};

static int fail(const char *what) {
    fprintf(stderr, "error: pdctl cannot start: %s: %s\n", what, strerror(errno));
    return 4;
}

/* A file that lies in memory alone; before Linux 3.17, one without a name. */
static int nameless(void) {
    int file = memfd_create("pdctl", MFD_CLOEXEC);
    if (file >= 0) return file;
    const char *folder = getenv("TMPDIR");
    return open(folder && *folder ? folder : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0700);
}

int main(int argc, char **argv, char **environment) {
    (void)argc, (void)environment;
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0) return fail("/proc/self/exe (is /proc mounted?)");
    path[length] = 0;
    int own = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (own < 0) return fail(path);
    size_t begin = LAYOUT.at & ~(uint64_t)4095, more = LAYOUT.at - begin;
    char *packed = mmap(NULL, LAYOUT.packed + more, PROT_READ, MAP_PRIVATE, own, (off_t)begin);
    if (packed == MAP_FAILED) return fail(path);
    int file = nameless();
    if (file < 0 || ftruncate(file, (off_t)LAYOUT.size) != 0) return fail("a file in memory or in $TMPDIR");
    char *space = mmap(NULL, LAYOUT.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (space == MAP_FAILED) return fail("memory");
    if (ZSTD_decompress(space, LAYOUT.size, packed + more, LAYOUT.packed) != LAYOUT.size) {
        fprintf(stderr, "error: %s is damaged: copy it again\n", path);
        return 4;
    }
    munmap(space, LAYOUT.size);
    char inner[64];
    snprintf(inner, sizeof inner, "/proc/self/fd/%d", file);
    if (setenv("PDCTL_ONE_FILE", path, 1) != 0) return fail("environment");
    int readable = open(inner, O_RDONLY | O_CLOEXEC); /* a file open for writing cannot be run */
    if (readable < 0) return fail("a file in memory");
    close(file);
    fexecve(readable, argv, environ);
    return fail("the interpreter");
}
