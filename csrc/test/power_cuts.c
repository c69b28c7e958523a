/* In place of crash_points.c, with the same points: each calls a function of the test, which may let the
 * kernel write pages back, or stop the machine. What the core puts on disk is told, and stays undone. */
#include "copy_in_halves.h"

#include <stddef.h>

/* Of a point: address NULL. Otherwise the bytes from address on go to the disk now. */
static void (*told)(const void *address, uint64_t nbytes);

void mc_points_tell(void (*function)(const void *address, uint64_t nbytes)) { told = function; }

void mc_point(int64_t what) {
    (void)what;
    if (told)
        told(NULL, 0);
}

int mc_point_msync(void *address, size_t nbytes, int flags) {
    (void)flags;
    if (told)
        told(address, nbytes);
    return 0;
}
