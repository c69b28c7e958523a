/* The calls of networks, counted as those of count_calls.c. */
#include "count.h"
#include "dense.h"

enum { ROWS = 64, BATCH = 16 };

int main(void) {
    static float numbers[10][64 * ROWS], x[BATCH * MC_PAD];
    struct mc_layer layer = {.inputs = 64, .outputs = 64, .activation = MC_TANH, .weight = numbers[0]};
    layer.bias = layer.row = numbers[1];
    layer.forward = numbers[2];
    layer.backward = numbers[0];
    layer.output = numbers[3];
    layer.gradient = numbers[4];
    layer.weight_gradient = numbers[5];
    layer.bias_gradient = numbers[6];
    struct mc_layer chain[] = {layer, layer};
    struct mc_tensor tensor = {64 * 64, numbers[0], numbers[5], numbers[7], numbers[8], numbers[9]};
    float number = 0;
    struct mc_descent descent = {&tensor, 1, 1e-3, 0.9, 0.999, 1e-8, &number, 10.0, 0.02};
    chain[0].inputs = 4;
    mc_dense_use(MC_BASELINE); /* which any processor has */
    COUNT("pack 4-64-64", (mc_layers_pack(chain, 2), 0));
    COUNT("forward, 16 rows by 4-64-64", (mc_layers_forward(chain, 2, BATCH, x, MC_PAD), 0));
    COUNT("backward, 16 rows by 4-64-64", (mc_layers_backward(chain, 2, BATCH, x, MC_PAD, NULL, 1), 0));
    COUNT("Adam, 4,096 weights with targets", mc_descend(&descent));
    return 0;
}
