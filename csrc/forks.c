/* Forks. A handler that raises would end the program's own work around a fork, half done. So no signal is
 * handled from before the fork, when the parent's mask becomes the child's, until that work is over. */
#define _GNU_SOURCE
#include <signal.h>

#include "core.h"

static _Atomic int64_t mc_fork_count;
/* Two threads may be between the same hooks; a hook of another library may itself fork. */
static _Thread_local struct {
    sigset_t mask;
    int64_t number, depth;
} mc_fork;

void mc_fork_begin(void) {
    sigset_t all, before;
    mc_fork.number = ++mc_fork_count;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &before); /* on Linux, the mask of this thread alone */
    if (mc_fork.depth++ == 0)
        mc_fork.mask = before;
}

void mc_fork_child(void) { mc_fork_count = mc_fork.number; }

void mc_fork_end(void) {
    if (mc_fork.depth > 0 && --mc_fork.depth == 0) /* 0: marlcore was imported after the fork's beginning */
        (void)sigprocmask(SIG_SETMASK, &mc_fork.mask, NULL);
}

int64_t mc_forks(void) { return mc_fork_count; }
