/* Fully connected networks of float32: products in blocks of registers, one source for all processors.
 *
 * A matrix's rows reach to a multiple of MC_PAD floats, so that whole vectors are read and written; what lies
 * beyond its columns is never used for a result. A sum's terms are added in one order, so a row's result
 * depends neither on the rows beside it nor on alignment. NaN and infinities pass through. Nothing is
 * allocated, nothing is kept.
 */
#include <math.h>
#include <string.h>

#include "dense.h"

#if defined(__x86_64__)
#define LEVEL(name) name##_avx512
#define KERNEL __attribute__((target("avx512f,avx2,fma")))
#define LANES 16
#define VECTORS 4
#define ROWS 4
#include "dense_kernels.h"

#define LEVEL(name) name##_avx2
#define KERNEL __attribute__((target("avx2,fma")))
#define LANES 8
#define VECTORS 2
#define ROWS 6
#include "dense_kernels.h"
#endif

#define LEVEL(name) name##_baseline
#define KERNEL
#define LANES 4
#if defined(__x86_64__)
#define VECTORS 2
#define ROWS 6
#else
#define VECTORS 4
#define ROWS 4
#endif
#include "dense_kernels.h"

static const struct mc_dense *chosen = &kernels_baseline;
static int level_in_use = MC_BASELINE;

const struct mc_dense *mc_dense(void) { return chosen; }

int mc_dense_level(void) { return level_in_use; }

int mc_dense_use(int level) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int most = !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ? MC_BASELINE
               : __builtin_cpu_supports("avx512f")                               ? MC_AVX512
                                                                                 : MC_AVX2;
    if (level > most)
        level = most;
    chosen = level == MC_AVX512 ? &kernels_avx512 : level == MC_AVX2 ? &kernels_avx2 : &kernels_baseline;
    level_in_use = level;
#else
    (void)level;
#endif
    return level_in_use;
}

__attribute__((constructor)) static void use_the_highest(void) { mc_dense_use(MC_AVX512); }
