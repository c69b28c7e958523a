/* Choices of actions, at random or by the outputs of a network. Numbers in [0, 1), multiples of 2^-53, come
 * from the caller or its generator. */
#include <math.h>
#include <string.h>

#include "dense.h"

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

/* Computes the rest of a network; returns the outputs, and sets the floats from row to row. */
static const float *outputs_of(const struct mc_chain *rest, int64_t rows, const float *x, int64_t *row) {
    if (!rest->count)
        return x;
    const struct mc_layer *last = &rest->layers[rest->count - 1];
    mc_layers_forward(rest->layers, rest->count, rows, x, *row);
    *row = mc_padded(last->outputs);
    return last->output;
}

void mc_act_by_values(const struct mc_choices *choices, const struct mc_chain *rest, int64_t rows,
                      const float *x, int64_t x_row, const uint8_t *allowed, const struct mc_uniform *uniform,
                      double epsilon) {
    int64_t actions = choices->actions;
    const float *outputs = outputs_of(rest, rows, x, &x_row);
    mc_values_best(rows, actions, outputs, x_row, allowed, choices->action);
    if (!uniform)
        return;
    for (int64_t r = 0; !isnan(epsilon) && r < rows; r++)
        choices->epsilon[r] = epsilon;
    for (int64_t i = 0; i < 2 * rows; i++)
        choices->draws[i] = uniform->next(uniform->state);
    mc_explore(rows, actions, choices->draws, choices->epsilon, allowed, choices->action);
}

void mc_act_by_categories(const struct mc_chain *rest, int64_t rows, const float *x, int64_t x_row,
                          int64_t parts, const int64_t *sizes, const uint8_t *allowed,
                          const struct mc_uniform *uniform, int64_t *drawn, float *log_prob) {
    const float *outputs = outputs_of(rest, rows, x, &x_row);
    int64_t values = 0, first = 0;
    for (int64_t part = 0; part < parts; part++)
        values += sizes[part];
    memset(log_prob, 0, (size_t)rows * sizeof *log_prob);
    for (int64_t part = 0; part < parts; first += sizes[part++])
        for (int64_t r = 0; r < rows; r++) {
            const uint8_t *of_row = allowed ? allowed + r * values : NULL;
            int64_t choices = 0;
            for (int64_t i = 0; of_row && i < values; i++)
                choices += of_row[i];
            const float *output = of_row && !choices ? NULL : outputs + r * x_row + first;
            drawn[r * parts + part] = draw(sizes[part], output, of_row ? of_row + first : NULL,
                                           uniform->next(uniform->state), &log_prob[r]);
        }
}
