/* Mappings of a file. An interrupted program may unwind between any two of its steps, so one call maps and
 * owns the memory, as in files.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

int mc_mapping_open(struct mc_mapping *mapping, int fd, uint64_t nbytes, int writable) {
    int flags = MAP_SHARED | (mapping->address ? MAP_FIXED : 0);
    void *address = mmap(mapping->address, nbytes, PROT_READ | (writable ? PROT_WRITE : 0), flags, fd, 0);
    if (address == MAP_FAILED)
        return -errno;
    mapping->nbytes = nbytes;
    mapping->address = address;
    return 0;
}

void mc_mapping_close(struct mc_mapping *mapping) {
    uint8_t *address = __atomic_exchange_n(&mapping->address, NULL, __ATOMIC_ACQ_REL);
    if (address)
        (void)munmap(address, mapping->nbytes);
}

/* A mapping keeps its open file description, and with it the locks. So the file is opened once more. */
int mc_mapping_detach(struct mc_mapping *mapping, int fd) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = open(path, O_RDONLY | O_CLOEXEC);
    if (own < 0)
        return -errno;
    int flags = MAP_FIXED | MAP_PRIVATE | MAP_NORESERVE;
    void *address = mmap(mapping->address, mapping->nbytes, PROT_READ | PROT_WRITE, flags, own, 0);
    int error = address == MAP_FAILED ? -errno : 0;
    (void)close(own);
    return error;
}
