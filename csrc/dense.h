/* Products of small matrices, and the functions applied to their results; row-major float32. See dense.c. */
#ifndef MC_DENSE_H
#define MC_DENSE_H

#include <math.h>
#include <stddef.h>

#include "api.h"

/* y[r, c] = after(bias[c] + the sum over i of a[r, i] b[i, c]), in an order that the sizes of b decide. */
struct mc_product {
    int64_t rows, inner, columns;
    const float *a;
    int64_t a_row, a_inner; /* floats from row to row of a, and from i to i */
    const float *b;         /* whole vectors are read: its rows reach to a multiple of MC_PAD floats */
    int64_t b_row;
    const float *bias; /* as a row of b, or NULL */
    float *y;
    int64_t y_row;
    int whole;             /* whether y's rows reach to a multiple of MC_PAD, which may be written */
    int activation;        /* of y, which then is whole, or the one that slope_of[r, c] came from: */
    const float *slope_of; /* y[r, c] is multiplied by the activation's derivative there */
    int64_t slope_row;
};

struct mc_dense { /* the kernels for one level of processors */
    void (*multiply)(const struct mc_product *product);
    /* y[c] = the sum over r of padded x[r, c]. */
    void (*add_rows)(int64_t rows, int64_t columns, const float *x, int64_t x_row, float *y);
    /* y[i] = a[i] b[i], or adds that to y[i]. */
    void (*scale)(int64_t n, const float *a, const float *b, int adds, float *y);
    /* Adam's step, and the target's move. */
    void (*descend)(const struct mc_tensor *tensor, const struct mc_descent *descent, float rate, float root,
                    float scale);
    double (*squares)(const float *x, int64_t n);
    /* Sets padded y [rows, count] to cos(pi j fractions[r]) for each row r and each j; |j fractions[r]| is
     * below 2^22. */
    void (*cosines)(int64_t rows, int64_t count, const float *fractions, float *y);
};

const struct mc_dense *mc_dense(void);

/* ---- a row's outputs are the values of its actions or, with dueling, the actions' advantages and after them
 * the state's value, to which an advantage adds less the mean advantage ---- */

static inline const uint8_t *mc_mask_of(const uint8_t *allowed, int64_t r, int64_t actions) {
    return allowed ? allowed + r * actions : NULL;
}

/* The number of the best action among those allowed, the first of equal ones. */
static inline int64_t mc_best_value(int64_t actions, const float *outputs, const uint8_t *allowed) {
    int64_t best = 0;
    float most = -INFINITY;
    for (int64_t a = 0; a < actions; a++) {
        float value = allowed && !allowed[a] ? -INFINITY : outputs[a];
        if (isnan(value)) /* as torch: the greatest */
            return a;
        best = value > most ? a : best;
        most = value > most ? value : most;
    }
    return best;
}

static inline float mc_value_of(int64_t actions, int dueling, const float *outputs, int64_t action) {
    if (!dueling)
        return outputs[action];
    float sum = 0.0f;
    for (int64_t a = 0; a < actions; a++)
        sum += outputs[a];
    return outputs[action] + (outputs[actions] - sum / (float)actions);
}

static inline int64_t mc_padded(int64_t n) { return (n + MC_PAD - 1) / MC_PAD * MC_PAD; }

#endif
