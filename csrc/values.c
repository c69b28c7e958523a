/* Values of actions, from a network's outputs: a row's outputs are the values of its actions or, with
 * dueling, the actions' advantages and after them the state's value, to which an advantage adds less the mean
 * advantage. */
#include <math.h>

#include "dense.h"

void mc_values_best(int64_t rows, int64_t actions, const float *outputs, int64_t row, const uint8_t *allowed,
                    int64_t *best) {
    for (int64_t r = 0; r < rows; r++, outputs += row) {
        int64_t first = 0;
        float most = -INFINITY;
        for (int64_t a = 0; a < actions; a++) {
            float value = allowed && !allowed[r * actions + a] ? -INFINITY : outputs[a];
            if (value > most || (isnan(value) && !isnan(most))) { /* as torch: a NaN is the greatest */
                most = value;
                first = a;
            }
        }
        best[r] = first;
    }
}

void mc_values_taken(int64_t rows, int64_t actions, int dueling, const float *outputs, int64_t row,
                     const int64_t *action, float *value) {
    for (int64_t r = 0; r < rows; r++, outputs += row) {
        float sum = 0.0f;
        for (int64_t a = 0; dueling && a < actions; a++)
            sum += outputs[a];
        value[r] = outputs[action[r]] + (dueling ? outputs[actions] - sum / (float)actions : 0.0f);
    }
}

void mc_values_slopes(int64_t rows, int64_t actions, int dueling, const int64_t *action, const float *slope,
                      float *gradient, int64_t row) {
    for (int64_t r = 0; r < rows; r++, gradient += row) {
        for (int64_t a = 0; a < actions; a++)
            gradient[a] = dueling ? -slope[r] / (float)actions : 0.0f;
        gradient[action[r]] += slope[r];
        if (dueling)
            gradient[actions] = slope[r];
    }
}

double mc_huber(int64_t rows, const float *value, const float *target, const float *weight, float *slope,
                float *error) {
    double loss = 0.0;
    for (int64_t r = 0; r < rows; r++) {
        float away = value[r] - target[r];
        float clipped = away > 1.0f ? 1.0f : away < -1.0f ? -1.0f : away;
        slope[r] = weight[r] * clipped / (float)rows;
        error[r] = fabsf(away);
        loss += (double)(slope[r] * (away - 0.5f * clipped));
    }
    return loss;
}
