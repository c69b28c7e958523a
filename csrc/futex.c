/* Sleeping until writers have committed enough. A waiter announces its amount before each sleep. Each writer
 * subtracts what it delivers, and the writer that brings the amount to 0 makes the waking system call.
 *
 * That call ends the announcement, so a waiter killed in its sleep costs the writers one system call, not one
 * per commit. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

static struct mc_event *mc_event_at(uint8_t *event) { return (struct mc_event *)(void *)event; }

uint32_t mc_event_prepare(uint8_t *event, uint32_t amount) {
    struct mc_event *e = mc_event_at(event);
    /* In this order: a writer that fulfils the announcement changes the event from the value seen. */
    uint32_t seen = mc_load_half(&e->event);
    mc_announce(&e->wanted, amount ? amount : 1);
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

void mc_event_notify(uint8_t *event, uint32_t amount) {
    struct mc_event *e = mc_event_at(event);
    mc_fence_event(); /* it is there before wanted is read; pairs with mc_event_prepare */
    if (!mc_deliver(&e->wanted, amount))
        return;
    mc_add_half(&e->event);
    syscall(SYS_futex, &e->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
