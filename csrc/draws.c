/* Random choices of actions: which rows explore, and draws from categories. The caller draws the numbers in
 * [0, 1), multiples of 2^-53, by its own generator. */
#include <math.h>
#include <stddef.h>

#include "api.h"

/* The allowed action at `place` of [0, 1); 0 if none is allowed. */
static int64_t picked(int64_t actions, const uint8_t *allowed, double place) {
    int64_t choices = 0;
    for (int64_t a = 0; a < actions; a++)
        choices += allowed[a];
    int64_t before = (int64_t)(place * (double)choices);
    for (int64_t a = 0; a < actions; a++)
        if (allowed[a] && before-- == 0)
            return a;
    return 0;
}

int64_t mc_explore(int64_t rows, int64_t actions, const double *draws, const double *epsilon,
                   const uint8_t *allowed, int64_t *action) {
    int64_t count = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (!(draws[r] < epsilon[r]))
            continue;
        double place = draws[rows + r];
        action[r] =
            allowed ? picked(actions, allowed + r * actions, place) : (int64_t)(place * (double)actions);
        count++;
    }
    return count;
}

static double logit(const float *output, const uint8_t *allowed, int64_t i) {
    return !output ? 0.0 : allowed && !allowed[i] ? -INFINITY : (double)output[i];
}

/* The number of one of n values, never one of probability 0; its probability's logarithm adds to log_prob. */
static int64_t draw(int64_t n, const float *output, const uint8_t *allowed, double place, float *log_prob) {
    double most = -INFINITY, total = 0.0, passed = 0.0;
    int64_t drawn = 0;
    for (int64_t i = 0; i < n; i++)
        most = logit(output, allowed, i) > most ? logit(output, allowed, i) : most;
    for (int64_t i = 0; i < n; i++)
        total += exp(logit(output, allowed, i) - most);
    double rest = place * total; /* less than the same sum in `passed`: multiples of 2^-53 do not round up */
    for (int64_t i = 0; i < n; i++) {
        if (passed <= rest)
            drawn = i;
        passed += exp(logit(output, allowed, i) - most);
    }
    *log_prob = (float)(*log_prob + logit(output, allowed, drawn) - most - log(total));
    return drawn;
}

void mc_categories_draw(int64_t rows, int64_t parts, const int64_t *sizes, const float *outputs, int64_t row,
                        const uint8_t *allowed, const double *places, int64_t *drawn, float *log_prob) {
    int64_t values = 0;
    for (int64_t part = 0; part < parts; part++)
        values += sizes[part];
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *of_row = allowed ? allowed + r * values : NULL;
        int64_t choices = 0, first = 0;
        for (int64_t i = 0; of_row && i < values; i++)
            choices += of_row[i];
        const float *output = of_row && !choices ? NULL : outputs + r * row;
        log_prob[r] = 0.0f;
        for (int64_t part = 0; part < parts; first += sizes[part++])
            drawn[r * parts + part] =
                draw(sizes[part], output ? output + first : NULL, of_row ? of_row + first : NULL,
                     places[part * rows + r], &log_prob[r]);
    }
}
