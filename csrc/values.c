/* Values of actions, from a network's outputs: a row's outputs are the values of its actions or, with
 * dueling, the actions' advantages and after them the state's value, to which an advantage adds less the mean
 * advantage. */
#include "values.h"

void mc_values_best(int64_t rows, int64_t actions, const float *outputs, int64_t row, const uint8_t *allowed,
                    int64_t *best) {
    for (int64_t r = 0; r < rows; r++)
        best[r] = mc_best(actions, outputs + r * row, allowed ? allowed + r * actions : NULL);
}

void mc_values_taken(int64_t rows, int64_t actions, int dueling, const float *outputs, int64_t row,
                     const int64_t *action, float *value) {
    for (int64_t r = 0; r < rows; r++)
        value[r] = mc_value(actions, dueling, outputs + r * row, action[r]);
}
