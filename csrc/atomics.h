/* The only place for memory orders. Each acquire names the release that it pairs with. */
#ifndef MC_ATOMICS_H
#define MC_ATOMICS_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t mc_word;
typedef _Atomic uint32_t mc_half;
typedef _Atomic uint8_t mc_byte;

static_assert(sizeof(mc_word) == 8 && sizeof(mc_half) == 4 && sizeof(mc_byte) == 1, "plain words");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "a lock would not be shared");

struct mc_counters {
    mc_word committed;
    mc_word reserved;
    mc_word of_queues[2]; /* see marlcore/queue/cursor.py */
    mc_word pledged; /* of a durable lane: the tickets below it that its writer may overwrite, by itself */
    mc_word upheld;  /* the pledge that is on disk; see mc_lane_pledge */
    mc_word of_clears[3]; /* see marlcore/memory/native.py */
    mc_word room;         /* of a durable queue: no pledge goes further; or 0 */
    mc_word kept[2];      /* by an append over the newest row: its first word, the count of rows */
};

struct mc_event {
    mc_half wanted;
    mc_half event;
};

/* committed: the release makes the rows below it readable; pairs with load_committed. */
static inline void mc_store_committed(struct mc_counters *c, uint64_t value) {
    atomic_store_explicit(&c->committed, value, memory_order_release);
}
/* Pairs with store_committed. */
static inline uint64_t mc_load_committed(const struct mc_counters *c) {
    return atomic_load_explicit(&((struct mc_counters *)c)->committed, memory_order_acquire);
}

/* reserved: ordered by the fences below, never by itself. */
static inline void mc_store_reserved(struct mc_counters *c, uint64_t value) {
    atomic_store_explicit(&c->reserved, value, memory_order_relaxed);
}
static inline uint64_t mc_load_reserved(const struct mc_counters *c) {
    return atomic_load_explicit(&((struct mc_counters *)c)->reserved, memory_order_relaxed);
}

/* kept: the first release orders the word after the commit of its row, and pairs with mc_fence_read; the
 * second orders the count after the word, and pairs with load_kept_of. */
static inline void mc_store_kept(struct mc_counters *c, uint64_t word, uint64_t of) {
    atomic_store_explicit(&c->kept[0], word, memory_order_release);
    atomic_store_explicit(&c->kept[1], of, memory_order_release);
}
static inline uint64_t mc_load_kept(const struct mc_counters *c) {
    return atomic_load_explicit(&((struct mc_counters *)c)->kept[0], memory_order_relaxed);
}
/* Pairs with store_kept. */
static inline uint64_t mc_load_kept_of(const struct mc_counters *c) {
    return atomic_load_explicit(&((struct mc_counters *)c)->kept[1], memory_order_acquire);
}

/* pledged: ordered by the system call that puts it on disk. */
static inline void mc_store_pledged(struct mc_counters *c, uint64_t value) {
    atomic_store_explicit(&c->pledged, value, memory_order_relaxed);
}
static inline uint64_t mc_load_pledged(const struct mc_counters *c) {
    return atomic_load_explicit(&((struct mc_counters *)c)->pledged, memory_order_relaxed);
}

/* upheld: the release keeps it behind the pledge, whose successors load both under the lane's lock. */
static inline void mc_store_upheld(struct mc_counters *c, uint64_t value) {
    atomic_store_explicit(&c->upheld, value, memory_order_release);
}
static inline uint64_t mc_load_upheld(const struct mc_counters *c) {
    return atomic_load_explicit(&((struct mc_counters *)c)->upheld, memory_order_relaxed);
}

/* Between reserving and writing rows: a reader that reads a new word also reads the reservation.
 * Pairs with mc_fence_read. */
static inline void mc_fence_write(void) { atomic_thread_fence(memory_order_release); }
/* The same if the copy may use non-temporal stores, which a release fence does not order on x86. */
static inline void mc_fence_write_streaming(void) { atomic_thread_fence(memory_order_seq_cst); }
/* Between copying rows out and reloading reserved. Pairs with mc_fence_write. */
static inline void mc_fence_read(void) { atomic_thread_fence(memory_order_acquire); }
/* Between a store and the load of another word, on both sides of a wait: pairs with itself. */
static inline void mc_fence_event(void) { atomic_thread_fence(memory_order_seq_cst); }

/* room: the lane's writer stored it before it appends. */
static inline uint64_t mc_load_room(const struct mc_counters *c) {
    return atomic_load_explicit(&((struct mc_counters *)c)->room, memory_order_relaxed);
}

/* The words of a row: relaxed, so that a racing copy is a defined mixture, which validation rejects. */
static inline void mc_store_row_word(mc_word *to, uint64_t value) {
    atomic_store_explicit(to, value, memory_order_relaxed);
}
static inline uint64_t mc_load_row_word(mc_word *from) {
    return atomic_load_explicit(from, memory_order_relaxed);
}
static inline void mc_store_row_byte(mc_byte *to, uint8_t value) {
    atomic_store_explicit(to, value, memory_order_relaxed);
}
static inline uint8_t mc_load_row_byte(mc_byte *from) {
    return atomic_load_explicit(from, memory_order_relaxed);
}

/* events: ordered by mc_fence_event. */
static inline uint32_t mc_load_half(mc_half *from) {
    return atomic_load_explicit(from, memory_order_relaxed);
}
static inline void mc_add_half(mc_half *to) { atomic_fetch_add_explicit(to, 1, memory_order_relaxed); }
/* wanted: how much must come before the waiters are woken; 0 without waiters. Of several announcements the
 * least counts. The store always happens: its release keeps the load of the event before the announcement;
 * pairs with mc_deliver. */
static inline void mc_announce(mc_half *wanted, uint32_t amount) {
    uint32_t before = atomic_load_explicit(wanted, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(wanted, &before,
                                                  before && before < amount ? before : amount,
                                                  memory_order_release, memory_order_relaxed))
        ;
}
/* Whether this delivery completes the wanted amount, for the first time. The acquire pairs with mc_announce:
 * a later change of the event differs from the value that the announcer read. */
static inline int mc_deliver(mc_half *wanted, uint32_t amount) {
    uint32_t before = atomic_load_explicit(wanted, memory_order_relaxed);
    uint32_t after;
    do {
        if (before == 0)
            return 0;
        after = before > amount ? before - amount : 0;
    } while (!atomic_compare_exchange_weak_explicit(wanted, &before, after, memory_order_acquire,
                                                    memory_order_relaxed));
    return after == 0;
}

/* control words: this release pairs with the acquire below. */
static inline void mc_store_word(mc_word *to, uint64_t value) {
    atomic_store_explicit(to, value, memory_order_release);
}
/* Pairs with mc_store_word. */
static inline uint64_t mc_load_word(mc_word *from) {
    return atomic_load_explicit(from, memory_order_acquire);
}

#endif
