/* One row of a network's outputs; see values.c. */
#ifndef MC_VALUES_H
#define MC_VALUES_H

#include <math.h>
#include <stddef.h>

#include "api.h"

static inline int64_t mc_best(int64_t actions, const float *outputs, const uint8_t *allowed) {
    int64_t best = 0;
    float most = -INFINITY;
    for (int64_t a = 0; a < actions; a++) {
        float value = allowed && !allowed[a] ? -INFINITY : outputs[a];
        if (value > most || (isnan(value) && !isnan(most))) { /* as torch: a NaN is the greatest */
            most = value;
            best = a;
        }
    }
    return best;
}

static inline float mc_value(int64_t actions, int dueling, const float *outputs, int64_t action) {
    float sum = 0.0f;
    for (int64_t a = 0; dueling && a < actions; a++)
        sum += outputs[a];
    return outputs[action] + (dueling ? outputs[actions] - sum / (float)actions : 0.0f);
}

/* Turns the gradient of the actions' values into that of the outputs. */
static inline void mc_value_gradient(int64_t actions, int dueling, float *gradient) {
    float sum = 0.0f;
    for (int64_t a = 0; dueling && a < actions; a++)
        sum += gradient[a];
    for (int64_t a = 0; dueling && a < actions; a++)
        gradient[a] -= sum / (float)actions;
    if (dueling)
        gradient[actions] = sum;
}

#endif
