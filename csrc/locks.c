/* Locks on single bytes of a file, owned by the open file description: the kernel drops them with its last
 * descriptor. So a dead holder never keeps a lock, and a stopped holder never loses one. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

#define MC_NAP_NS 1000000

static struct flock mc_byte_lock(int64_t offset, short type) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1};
}

static int mc_lock_set(int fd, int64_t offset, short type) {
    struct flock lock = mc_byte_lock(offset, type);
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return 0;
    return errno == EACCES ? -EAGAIN : -errno;
}

int mc_lock_try(int fd, int64_t offset, int exclusive) {
    return mc_lock_set(fd, offset, exclusive ? F_WRLCK : F_RDLCK);
}

/* Naps instead of F_OFD_SETLKW, which has no time limit and would miss a signal just before it. */
int mc_lock_wait(int fd, int64_t offset, int64_t timeout_ns) {
    int64_t nap = 1000;
    for (;;) {
        int error = mc_lock_set(fd, offset, F_WRLCK);
        if (error != -EAGAIN || timeout_ns <= 0)
            return error;
        struct timespec time = {.tv_sec = 0, .tv_nsec = nap};
        if (nanosleep(&time, NULL))
            return -errno;
        timeout_ns -= nap;
        nap = 2 * nap < MC_NAP_NS ? 2 * nap : MC_NAP_NS;
    }
}

/* Unlocking fails only for a bad descriptor or a file system whose server is gone, never for lack of memory,
 * since the lock is not part of a longer one. The guarded work is done, so there is nothing to undo. A lock
 * that stays ends with the holder's next turn, or with the holder. */
void mc_lock_drop(int fd, int64_t offset) { (void)mc_lock_set(fd, offset, F_UNLCK); }

int mc_lock_held(int fd, int64_t offset) {
    struct flock lock = mc_byte_lock(offset, F_WRLCK);
    return fcntl(fd, F_OFD_GETLK, &lock) ? -errno : lock.l_type != F_UNLCK;
}
