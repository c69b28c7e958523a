/* A policy's answer to observations in one call: the rest of its network, and a choice by the outputs. */
#include <math.h>

#include "dense.h"

static void fill(const struct mc_uniform *uniform, int64_t n, double *numbers) {
    for (int64_t i = 0; i < n; i++)
        numbers[i] = uniform->next(uniform->state);
}

/* Computes the layers; returns the outputs, and sets the floats from row to row. */
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
    fill(uniform, 2 * rows, choices->draws);
    mc_explore(rows, actions, choices->draws, choices->epsilon, allowed, choices->action);
}

void mc_act_by_categories(const struct mc_chain *rest, int64_t rows, const float *x, int64_t x_row,
                          int64_t parts, const int64_t *sizes, const uint8_t *allowed,
                          const struct mc_uniform *uniform, double *places, int64_t *drawn, float *log_prob) {
    const float *outputs = outputs_of(rest, rows, x, &x_row);
    fill(uniform, parts * rows, places);
    mc_categories_draw(rows, parts, sizes, outputs, x_row, allowed, places, drawn, log_prob);
}
