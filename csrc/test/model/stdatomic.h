/* Stands in for <stdatomic.h> when model_lane.cpp compiles the core: the words of the model's memory are
 * explored by Relacy instead of being read and written. A word's address says which one it is. */
#ifndef MC_MODEL_STDATOMIC_H
#define MC_MODEL_STDATOMIC_H

#include <errno.h>
#include <relacy/relacy.hpp>

/* Relacy renames these for code written against it; the core is not. */
#undef memory_order_relaxed
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef assert
#undef errno
#define errno (*__errno_location())

#include <assert.h>
#include <stdint.h>

#define memory_order_relaxed rl::mo_relaxed
#define memory_order_acquire rl::mo_acquire
#define memory_order_release rl::mo_release
#define memory_order_acq_rel rl::mo_acq_rel
#define memory_order_seq_cst rl::mo_seq_cst

#define _Atomic /* mc_word and its kin become plain numbers, of which only the addresses are used */
#define ATOMIC_LLONG_LOCK_FREE 2
#define ATOMIC_INT_LOCK_FREE 2

typedef rl::atomic<uint64_t> model_atomic;
typedef rl::var<uint64_t> model_plain;

model_atomic &model_atomic_at(const void *address);
model_plain &model_plain_at(const void *address);
/* Loads that can have one result only and need no exploring. */
bool model_known(const void *address, uint64_t *value);

template <typename T> static void atomic_store_explicit(T *to, uint64_t value, rl::memory_order order) {
    model_atomic_at(to).store(value, order, RL_INFO);
}
template <typename T> static T atomic_load_explicit(const T *from, rl::memory_order order) {
    uint64_t known;
    return (T)(model_known(from, &known) ? known : model_atomic_at(from).load(order, RL_INFO));
}
template <typename T> static T atomic_fetch_add_explicit(T *to, uint64_t value, rl::memory_order order) {
    return (T)model_atomic_at(to)(RL_INFO).fetch_add(value, order);
}
template <typename T> static T atomic_exchange_explicit(T *to, uint64_t value, rl::memory_order order) {
    return (T)model_atomic_at(to)(RL_INFO).exchange(value, order);
}
static inline void atomic_thread_fence(rl::memory_order order) { rl::atomic_thread_fence(order, RL_INFO); }

/* What the mutant with plain rows calls. */
static inline void model_plain_store(const void *to, uint64_t value) {
    model_plain_at(to)(RL_INFO).store(value);
}
static inline uint64_t model_plain_load(const void *from) { return model_plain_at(from)(RL_INFO).load(); }

#endif
