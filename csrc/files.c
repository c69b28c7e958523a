/* Files. An interrupted program may unwind between any two of its steps. So one call opens and owns a
 * descriptor, one call names a file and owns its name, and closing forgets the descriptor first. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core.h"

int mc_file_open(struct mc_file *file, const char *path, int flags, unsigned mode) {
    if (file->fd >= 0)
        return -EBUSY;
    file->fd = open(path, flags | O_CLOEXEC, mode);
    return file->fd < 0 ? -errno : 0;
}

int mc_file_link(struct mc_file *file) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file->fd);
    if (linkat(AT_FDCWD, path, AT_FDCWD, file->name, AT_SYMLINK_FOLLOW))
        return -errno;
    file->owner = getpid();
    return 0;
}

/* Another file may have the name by now. */
static int mc_file_unlink(const struct mc_file *file, int fd) {
    struct stat own, named;
    if (fstat(fd, &own) || lstat(file->name, &named))
        return errno == ENOENT ? 0 : -errno;
    if (own.st_dev != named.st_dev || own.st_ino != named.st_ino)
        return 0;
    return unlink(file->name) && errno != ENOENT ? -errno : 0;
}

/* The result of close is ignored: Linux closes the descriptor in any case. */
int mc_file_close(struct mc_file *file) {
    int fd = __atomic_exchange_n(&file->fd, -1, __ATOMIC_ACQ_REL);
    if (fd < 0)
        return 0;
    int error = file->owner == getpid() ? mc_file_unlink(file, fd) : 0;
    (void)close(fd);
    return error;
}

int mc_file_allocate(int fd, int64_t nbytes) { return fallocate(fd, 0, 0, nbytes) ? -errno : 0; }

int64_t mc_file_system(int fd) {
    struct statfs status;
    return fstatfs(fd, &status) ? -errno : (int64_t)(uint64_t)status.f_type;
}
