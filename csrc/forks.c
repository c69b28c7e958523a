/* Forks. A handler that raises would end the program's own work around a fork, half done. So no signal is
 * handled from before the fork, when the parent's mask becomes the child's, until that work is over. */
#define _GNU_SOURCE
#include <signal.h>

#include "core.h"

static _Thread_local sigset_t mc_mask; /* two threads may be between the same hooks */
static _Atomic int64_t mc_fork_count;

void mc_fork_begin(void) {
    sigset_t all;
    mc_fork_count++;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &mc_mask); /* on Linux, the mask of this thread alone */
}

void mc_fork_end(void) { (void)sigprocmask(SIG_SETMASK, &mc_mask, NULL); }

int64_t mc_forks(void) { return mc_fork_count; }
