/* Chains of fully connected layers: their outputs, their gradients, and steps of Adam. */
#include <math.h>
#include <string.h>

#include "dense.h"

typedef float four __attribute__((vector_size(16)));
typedef int32_t places __attribute__((vector_size(16)));
#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif

/* Transposes 4 x 4 numbers. */
static inline void turn(float *to, int64_t to_row, const float *from, int64_t from_row) {
    four row[4];
    for (int k = 0; k < 4; k++)
        memcpy(&row[k], from + k * from_row, sizeof row[k]);
    four a = PICK(row[0], row[1], 0, 4, 1, 5), b = PICK(row[2], row[3], 0, 4, 1, 5);
    four c = PICK(row[0], row[1], 2, 6, 3, 7), d = PICK(row[2], row[3], 2, 6, 3, 7);
    const four turned[4] = {PICK(a, b, 0, 1, 4, 5), PICK(a, b, 2, 3, 6, 7), PICK(c, d, 0, 1, 4, 5),
                            PICK(c, d, 2, 3, 6, 7)};
    for (int k = 0; k < 4; k++)
        memcpy(to + k * to_row, &turned[k], sizeof turned[k]);
}

/* Into `to` [rows, padded columns], from a matrix [rows, columns], or [columns, rows] if transposed. */
static void arrange(float *to, const float *from, int64_t rows, int64_t columns, int transposed) {
    int64_t pitch = mc_padded(columns), whole_rows = transposed ? rows / 4 * 4 : 0;
    int64_t whole_columns = transposed ? columns / 4 * 4 : columns;
    for (int64_t r = 0; r < whole_rows; r += 4)
        for (int64_t c = 0; c < whole_columns; c += 4)
            turn(to + r * pitch + c, pitch, from + c * rows + r, rows);
    for (int64_t r = 0; r < rows; r++) {
        if (!transposed)
            memcpy(to + r * pitch, from + r * columns, (size_t)columns * sizeof *to);
        for (int64_t c = r < whole_rows || !transposed ? whole_columns : 0; c < columns; c++)
            to[r * pitch + c] = from[c * rows + r];
    }
}

static void arrange_backward(const struct mc_layer *layer) {
    if (layer->backward && layer->backward != layer->weight)
        arrange(layer->backward, layer->weight, layer->outputs, layer->inputs, layer->inputs_first);
}

void mc_layers_pack(const struct mc_layer *layers, int64_t count) {
    for (const struct mc_layer *layer = layers; layer < layers + count; layer++) {
        if (layer->forward != layer->weight)
            arrange(layer->forward, layer->weight, layer->inputs, layer->outputs, !layer->inputs_first);
        if (layer > layers)
            arrange_backward(layer);
        memcpy(layer->row, layer->bias, (size_t)layer->outputs * sizeof *layer->row);
    }
}

void mc_layers_forward(const struct mc_layer *layers, int64_t count, int64_t rows, const float *x,
                       int64_t x_row) {
    for (const struct mc_layer *layer = layers; layer < layers + count; layer++) {
        int64_t pitch = mc_padded(layer->outputs);
        struct mc_product product = {.rows = rows,
                                     .inner = layer->inputs,
                                     .columns = layer->outputs,
                                     .a = x,
                                     .a_row = x_row,
                                     .a_inner = 1,
                                     .b = layer->forward,
                                     .b_row = pitch,
                                     .bias = layer->row,
                                     .y = layer->output,
                                     .y_row = pitch,
                                     .whole = 1,
                                     .activation = layer->activation};
        mc_dense()->multiply(&product);
        x = layer->output;
        x_row = pitch;
    }
}

/* y [a_columns, b_columns] = a transposed, times b; both have `rows` rows. */
static void transposed_times(int64_t rows, const float *a, int64_t a_row, int64_t a_columns, const float *b,
                             int64_t b_row, int64_t b_columns, float *y, int64_t y_row) {
    struct mc_product product = {.rows = a_columns,
                                 .inner = rows,
                                 .columns = b_columns,
                                 .a = a,
                                 .a_row = 1,
                                 .a_inner = a_row,
                                 .b = b,
                                 .b_row = b_row,
                                 .y = y,
                                 .y_row = y_row};
    mc_dense()->multiply(&product);
}

enum { FEW = 8, STRIP = 64 };

/* Of one layer, by the gradient g of its sums before the activation. */
static void of_weights(const struct mc_layer *layer, int64_t rows, const float *x, int64_t x_row,
                       const float *g) {
    int64_t pitch = mc_padded(layer->outputs), inputs = layer->inputs, outputs = layer->outputs;
    float *to = layer->weight_gradient, strip[FEW * STRIP];
    if (layer->inputs_first)
        transposed_times(rows, x, x_row, inputs, g, pitch, outputs, to, outputs);
    else if (inputs > FEW)
        transposed_times(rows, g, pitch, outputs, x, x_row, inputs, to, inputs);
    else /* rows of so few numbers would leave most of a vector unused */
        for (int64_t first = 0; first < outputs; first += STRIP) {
            int64_t count = outputs - first < STRIP ? outputs - first : STRIP;
            transposed_times(rows, x, x_row, inputs, g + first, pitch, count, strip, STRIP);
            for (int64_t o = 0; o < count; o++)
                for (int64_t i = 0; i < inputs; i++)
                    to[(first + o) * inputs + i] = strip[i * STRIP + o];
        }
    mc_dense()->add_rows(rows, outputs, g, pitch, layer->bias_gradient);
}

void mc_layers_backward(const struct mc_layer *layers, int64_t count, int64_t rows, const float *x,
                        int64_t x_row, float *x_gradient, int trains) {
    const struct mc_layer *last = &layers[count - 1];
    float *g = last->gradient;
    int64_t last_row = mc_padded(last->outputs);
    for (int64_t r = 0; last->activation != MC_LINEAR && r < rows; r++)
        for (int64_t i = r * last_row; i < r * last_row + last->outputs; i++) {
            float y = last->output[i];
            g[i] = last->activation == MC_TANH ? g[i] * (1.0f - y * y) : y > 0.0f ? g[i] : 0.0f;
        }
    for (int64_t i = count - 1; i >= 0; i--) {
        const struct mc_layer *layer = &layers[i], *below = i ? layer - 1 : NULL;
        int64_t below_row = mc_padded(layer->inputs);
        if (trains)
            of_weights(layer, rows, below ? below->output : x, below ? below_row : x_row, g);
        float *to = below ? below->gradient : x_gradient;
        if (!to)
            return;
        if (!below)
            arrange_backward(layer);
        struct mc_product product = {.rows = rows,
                                     .inner = layer->outputs,
                                     .columns = layer->inputs,
                                     .a = g,
                                     .a_row = mc_padded(layer->outputs),
                                     .a_inner = 1,
                                     .b = layer->backward,
                                     .b_row = below_row,
                                     .y = to,
                                     .y_row = below_row,
                                     .whole = 1,
                                     .activation = below ? below->activation : MC_LINEAR,
                                     .slope_of = below ? below->output : NULL,
                                     .slope_row = below_row};
        mc_dense()->multiply(&product);
        g = to;
    }
}

double mc_descend(const struct mc_descent *descent) {
    const struct mc_tensor *tensors = descent->tensors, *end = tensors + descent->count;
    double squares = 0.0, number = (double)(*descent->number += 1.0f);
    for (const struct mc_tensor *tensor = tensors; tensor < end; tensor++)
        squares += mc_dense()->squares(tensor->gradient, tensor->size);
    double norm = sqrt(squares), longer = norm / descent->most;
    float scale = longer > 1.0 || isnan(longer) ? (float)(1.0 / longer) : 1.0f;
    float rate = (float)(descent->rate / (1.0 - pow(descent->beta1, number)));
    float root = (float)(1.0 / sqrt(1.0 - pow(descent->beta2, number)));
    for (const struct mc_tensor *tensor = tensors; tensor < end; tensor++)
        mc_dense()->descend(tensor, descent, rate, root, scale);
    return norm;
}
