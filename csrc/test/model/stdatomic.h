/* Stands in for <stdatomic.h> when the core is compiled for the model checker: each atomic access becomes a
 * call of model_lane.cpp, which has Relacy explore it. A word's address says which one it is. */
#ifndef MC_MODEL_STDATOMIC_H
#define MC_MODEL_STDATOMIC_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The values of Relacy's own, which model_lane.cpp checks. */
enum {
    memory_order_relaxed = 0,
    memory_order_acquire = 2,
    memory_order_release = 3,
    memory_order_acq_rel = 4,
    memory_order_seq_cst = 5
};

#define _Atomic /* mc_word and its kin become plain numbers, of which only the addresses are used */
#define ATOMIC_LLONG_LOCK_FREE 2
#define ATOMIC_INT_LOCK_FREE 2

void model_store(const void *to, uint64_t value, int order);
uint64_t model_load(const void *from, int order);
uint64_t model_fetch_add(const void *to, uint64_t value, int order);
int model_compare_exchange(const void *to, uint32_t *expected, uint64_t value, int order);
void model_fence(int order);
/* What the mutant with plain rows calls. */
void model_plain_store(const void *to, uint64_t value);
uint64_t model_plain_load(const void *from);

#ifdef __cplusplus
}
#endif

#define atomic_store_explicit(to, value, order) model_store(to, value, order)
#define atomic_load_explicit(from, order) ((__typeof__(*(from)))model_load(from, order))
#define atomic_fetch_add_explicit(to, value, order) model_fetch_add(to, value, order)
#define atomic_compare_exchange_weak_explicit(to, expected, value, order, failure) \
    model_compare_exchange(to, expected, value, order)
#define atomic_thread_fence(order) model_fence(order)

#endif
