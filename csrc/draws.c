/* Choices of actions, at random or by the outputs of a network. */
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
static const float *outputs_of(const struct mc_begun *network, int64_t *row) {
    const struct mc_chain *rest = &network->rest;
    *row = network->x_row;
    if (!rest->count)
        return network->x;
    mc_layers_forward(rest->layers, rest->count, network->rows, network->x, network->x_row);
    *row = mc_padded(rest->layers[rest->count - 1].outputs);
    return rest->layers[rest->count - 1].output;
}

/* Sets the values of the rows' present actions. */
static void put_values(const struct mc_choices *choices, int64_t rows, const float *outputs, int64_t row,
                       float *values) {
    for (int64_t r = 0; values && r < rows; r++)
        values[r] = mc_value_of(choices->actions, choices->dueling, outputs + r * row, choices->action[r]);
}

void mc_act_by_values(const struct mc_choices *choices, const struct mc_begun *network,
                      const uint8_t *allowed, const struct mc_uniform *uniform, double epsilon, int own) {
    int64_t actions = choices->actions, rows = network->rows, row;
    const float *outputs = outputs_of(network, &row);
    for (int64_t r = 0; r < rows; r++)
        choices->action[r] = mc_best_value(actions, outputs + r * row, mc_mask_of(allowed, r, actions));
    put_values(choices, rows, outputs, row, choices->best);
    if (uniform) {
        for (int64_t r = 0; !own && r < rows; r++)
            choices->epsilon[r] = epsilon;
        for (int64_t i = 0; i < 2 * rows; i++)
            choices->draws[i] = uniform->next(uniform->state);
        mc_explore(rows, actions, choices->draws, choices->epsilon, allowed, choices->action);
    }
    put_values(choices, rows, outputs, row, choices->taken);
}

void mc_act_by_categories(const struct mc_begun *network, int64_t parts, const int64_t *sizes,
                          const uint8_t *allowed, const struct mc_uniform *uniform, int64_t *drawn,
                          float *log_prob) {
    int64_t rows = network->rows, row;
    const float *outputs = outputs_of(network, &row);
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
            const float *output = of_row && !choices ? NULL : outputs + r * row + first;
            drawn[r * parts + part] = draw(sizes[part], output, of_row ? of_row + first : NULL,
                                           uniform->next(uniform->state), &log_prob[r]);
        }
}
