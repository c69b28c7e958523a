/* Locks on single bytes of a file, owned by the open file description: the kernel drops them with its last
 * descriptor, so a dead holder never keeps one and a stopped holder never loses one. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "core.h"

int mc_lock_try(int fd, int64_t offset, int exclusive) {
    struct flock lock = {
        .l_type = exclusive ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1};
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return 0;
    return errno == EACCES ? -EAGAIN : -errno;
}
