/* Sleeping until a writer commits. A writer pays a system call only when a waiter has announced itself.
 *
 * A waiter announces itself anew before each sleep and a writer takes all announcements when it wakes them,
 * so that a waiter killed in its sleep costs the writers one system call, not one at each commit. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

static struct mc_event *mc_event_at(uint8_t *event) { return (struct mc_event *)(void *)event; }

uint32_t mc_event_prepare(uint8_t *event) {
    struct mc_event *e = mc_event_at(event);
    /* In this order: a writer that takes the announcement moves the event on from what was seen. */
    uint32_t seen = mc_load_half(&e->event);
    mc_announce(&e->waiters);
    mc_fence_event(); /* announced before the caller checks its condition; pairs with mc_event_notify */
    return seen;
}

int mc_event_wait(uint8_t *event, uint32_t seen, int64_t timeout_ns) {
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    if (syscall(SYS_futex, &mc_event_at(event)->event, FUTEX_WAIT, seen, &timeout, NULL, 0) == 0 ||
        errno == EAGAIN)
        return 0;
    return -errno;
}

void mc_event_notify(uint8_t *event) {
    struct mc_event *e = mc_event_at(event);
    mc_fence_event(); /* the condition is true before waiters is read; pairs with mc_event_prepare */
    if (mc_load_half(&e->waiters) == 0)
        return;
    mc_take_announcements(&e->waiters);
    mc_add_half(&e->event);
    syscall(SYS_futex, &e->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
