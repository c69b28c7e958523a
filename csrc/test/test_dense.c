/* Small networks beside plain loops in double precision, at each level of kernels that the processor has. */
#include <math.h>
#include <stdint.h>

#include "check.h"
#include "dense.h"

enum { MOST = 130, PITCH = 144 }; /* sizes, and the floats of a padded row of the largest */

static uint64_t state = 1;

static float drawn(void) { /* in [-1, 1) */
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) / 2147483648.0f;
}

static int64_t size_up_to(int64_t most) {
    return 1 + (int64_t)((drawn() + 1.0f) / 2.0f * (float)most) % most;
}
static float *draw(float *to, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = drawn();
    return to;
}

static float *room(int64_t n) { /* unaligned, and exactly as long as it is, for sanitizers */
    float *floats = malloc((size_t)(n + 1) * sizeof *floats);
    CHECK(floats);
    return floats + 1;
}
static void leave(float *floats) { free(floats - 1); }

/* A sum of n products of numbers in [-1, 1) rounds by at most n / 2 units each of its terms, whatever the
 * order. */
static int near(double got, double expected, int64_t n, double largest) {
    return fabs(got - expected) <= 1e-7 * (double)(n + 8) * (1.0 + largest);
}

#define EACH_LEVEL                                                                                           \
    for (int level = MC_BASELINE; level <= MC_AVX512; level++)                                               \
        if (mc_dense_use(level) == level)

struct one { /* a layer with memory of its own */
    struct mc_layer layer;
    float *x, *x_gradient;
    int64_t rows, x_row;
};

static struct one make(int64_t rows, int64_t inputs, int64_t outputs, int activation, int inputs_first) {
    struct one one = {.rows = rows, .x_row = rows % 2 ? inputs : mc_padded(inputs)};
    struct mc_layer *layer = &one.layer;
    *layer = (struct mc_layer){
        .inputs = inputs, .outputs = outputs, .activation = activation, .inputs_first = inputs_first};
    layer->weight = draw(room(inputs * outputs), inputs * outputs);
    layer->bias = draw(room(outputs), outputs);
    layer->forward = room(inputs * mc_padded(outputs));
    layer->backward = room(outputs * mc_padded(inputs));
    layer->row = room(mc_padded(outputs));
    layer->output = room(rows * mc_padded(outputs));
    layer->gradient = draw(room(rows * mc_padded(outputs)), rows * mc_padded(outputs));
    layer->weight_gradient = room(inputs * outputs);
    layer->bias_gradient = room(outputs);
    one.x = draw(room(rows * one.x_row + MC_PAD), rows * one.x_row);
    one.x_gradient = room(rows * mc_padded(inputs));
    mc_layers_pack(layer, 1);
    return one;
}

static void drop(struct one *one) {
    struct mc_layer *layer = &one->layer;
    float *all[] = {(float *)(uintptr_t)layer->weight,
                    (float *)(uintptr_t)layer->bias,
                    layer->forward,
                    layer->backward,
                    layer->row,
                    layer->output,
                    layer->gradient,
                    layer->weight_gradient,
                    layer->bias_gradient,
                    one->x,
                    one->x_gradient};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        leave(all[i]);
}

static float weight_of(const struct mc_layer *layer, int64_t i, int64_t o) {
    return layer->inputs_first ? layer->weight[i * layer->outputs + o] : layer->weight[o * layer->inputs + i];
}

static double slope_at(int activation, float y) {
    return activation == MC_RELU   ? (double)(y > 0.0f)
           : activation == MC_TANH ? 1.0 - (double)y * (double)y
                                   : 1.0;
}

static void check_outputs(const struct one *one) {
    const struct mc_layer *layer = &one->layer;
    for (int64_t r = 0; r < one->rows; r++)
        for (int64_t o = 0; o < layer->outputs; o++) {
            double sum = (double)layer->bias[o];
            for (int64_t i = 0; i < layer->inputs; i++)
                sum += (double)one->x[r * one->x_row + i] * (double)weight_of(layer, i, o);
            double y = layer->activation == MC_RELU   ? fmax(sum, 0.0)
                       : layer->activation == MC_TANH ? tanh(sum)
                                                      : sum;
            CHECK(
                near((double)layer->output[r * mc_padded(layer->outputs) + o], y, layer->inputs, fabs(sum)));
        }
}

/* By the gradients of the sums, which mc_layers_backward left in `gradient`. */
static void check_gradients(const struct one *one) {
    const struct mc_layer *layer = &one->layer;
    int64_t pitch = mc_padded(layer->outputs), rows = one->rows;
    for (int64_t o = 0; o < layer->outputs; o++) {
        double of_bias = 0.0;
        for (int64_t r = 0; r < rows; r++)
            of_bias += (double)layer->gradient[r * pitch + o];
        CHECK(near((double)layer->bias_gradient[o], of_bias, rows, (double)rows));
        for (int64_t i = 0; i < layer->inputs; i++) {
            double sum = 0.0;
            for (int64_t r = 0; r < rows; r++)
                sum += (double)one->x[r * one->x_row + i] * (double)layer->gradient[r * pitch + o];
            int64_t at = layer->inputs_first ? i * layer->outputs + o : o * layer->inputs + i;
            CHECK(near((double)layer->weight_gradient[at], sum, rows, (double)rows));
        }
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < layer->inputs; i++) {
            double sum = 0.0;
            for (int64_t o = 0; o < layer->outputs; o++)
                sum += (double)layer->gradient[r * pitch + o] * (double)weight_of(layer, i, o);
            CHECK(near((double)one->x_gradient[r * mc_padded(layer->inputs) + i], sum, layer->outputs,
                       (double)layer->outputs));
        }
}

TEST(layers_of_all_sizes_equal_plain_loops) {
    EACH_LEVEL for (int64_t n = 1; n <= 3 * MOST; n++) {
        int64_t sizes[] = {size_up_to(20), size_up_to(MOST), size_up_to(MOST)};
        sizes[n % 3] = (n + 2) / 3;
        struct one one = make(sizes[0], sizes[1], sizes[2], (int)(n / 3 % 3), (int)(n % 2));
        mc_layers_forward(&one.layer, 1, one.rows, one.x, one.x_row);
        check_outputs(&one);
        mc_layers_backward(&one.layer, 1, one.rows, one.x, one.x_row, one.x_gradient, 1);
        check_gradients(&one);
        drop(&one);
    }
}

TEST(a_gradient_passes_through_each_activation) {
    EACH_LEVEL for (int activation = MC_LINEAR; activation <= MC_TANH; activation++) {
        struct one first = make(7, 5, 19, activation, 0), last = make(7, 19, 3, activation, 1);
        struct mc_layer chain[] = {first.layer, last.layer};
        float given[7 * MC_PAD];
        memcpy(given, last.layer.gradient, sizeof given);
        mc_layers_pack(chain, 2);
        mc_layers_forward(chain, 2, 7, first.x, first.x_row);
        mc_layers_backward(chain, 2, 7, first.x, first.x_row, first.x_gradient, 1);
        for (int64_t r = 0; r < 7; r++) {
            const float *y = last.layer.output + r * MC_PAD, *g = last.layer.gradient + r * MC_PAD;
            for (int64_t o = 0; o < 3; o++)
                CHECK(near((double)g[o], slope_at(activation, y[o]) * (double)given[r * MC_PAD + o], 1, 1.0));
            for (int64_t i = 0; i < 19; i++) {
                double sum = 0.0;
                for (int64_t o = 0; o < 3; o++)
                    sum += (double)g[o] * (double)weight_of(&last.layer, i, o);
                double slope = slope_at(activation, first.layer.output[r * 2 * MC_PAD + i]);
                CHECK(near((double)first.layer.gradient[r * 2 * MC_PAD + i], slope * sum, 3, 3.0));
            }
        }
        check_gradients(&first);
        drop(&first);
        drop(&last);
    }
}

TEST(a_row_depends_on_no_other_row) {
    EACH_LEVEL for (int64_t rows = 1; rows <= 37; rows++) {
        struct one one = make(rows, size_up_to(MOST), size_up_to(rows % 2 ? MOST : 8), MC_TANH, 0);
        int64_t pitch = mc_padded(one.layer.outputs);
        mc_layers_forward(&one.layer, 1, rows, one.x, one.x_row);
        float *together = room(rows * pitch);
        memcpy(together, one.layer.output, (size_t)(rows * pitch) * sizeof *together);
        for (int64_t r = 0; r < rows; r++) {
            mc_layers_forward(&one.layer, 1, 1, one.x + r * one.x_row, one.x_row);
            CHECK(!memcmp(one.layer.output, together + r * pitch,
                          (size_t)one.layer.outputs * sizeof *together));
        }
        leave(together);
        drop(&one);
    }
}

TEST(nan_and_infinity_pass_and_stay_in_their_row) {
    EACH_LEVEL for (int activation = MC_LINEAR; activation <= MC_TANH; activation++) {
        struct one one = make(9, 21, 40, activation, 0);
        one.x[3 * one.x_row + 7] = NAN;
        one.x[5 * one.x_row] = INFINITY;
        mc_layers_forward(&one.layer, 1, 9, one.x, one.x_row);
        for (int64_t r = 0; r < 9; r++)
            for (int64_t o = 0; o < 40; o++) {
                float y = one.layer.output[r * mc_padded(40) + o];
                float expected = weight_of(&one.layer, 0, o) > 0 ? INFINITY : -INFINITY;
                if (activation == MC_TANH)
                    expected = expected > 0 ? 1 : -1;
                if (activation == MC_RELU && expected < 0)
                    expected = 0;
                CHECK(r == 3 ? isnan(y) : r == 5 ? y == expected : isfinite(y));
            }
        drop(&one);
    }
}

TEST(tanh_is_within_two_units_in_the_last_place) {
    EACH_LEVEL {
        struct one one = make(1 << 12, 1, 1, MC_TANH, 0);
        *(float *)(uintptr_t)one.layer.weight = 1.0f;
        *(float *)(uintptr_t)one.layer.bias = 0.0f;
        mc_layers_pack(&one.layer, 1);
        for (int scale = -20; scale <= 5; scale++) {
            for (int64_t r = 0; r < one.rows; r++)
                one.x[r * one.x_row] = ldexpf(drawn(), scale);
            mc_layers_forward(&one.layer, 1, one.rows, one.x, one.x_row);
            for (int64_t r = 0; r < one.rows; r++) {
                double right = tanh((double)one.x[r * one.x_row]);
                float unit = nextafterf(fabsf((float)right), INFINITY) - fabsf((float)right);
                CHECK(fabs((double)one.layer.output[r * MC_PAD] - right) <= 2.0 * (double)unit);
            }
        }
        drop(&one);
    }
}

TEST(cosines_are_right_to_the_rounding_of_their_angle) {
    EACH_LEVEL for (int64_t count = 1; count <= 70; count++) {
        float fraction = (drawn() + 1.0f) / 2.0f, *y = room(mc_padded(count));
        mc_dense()->cosines(1, count, &fraction, y);
        for (int64_t j = 0; j < count; j++)
            CHECK(fabs((double)y[j] - cos(3.14159265358979323846 * (double)j * (double)fraction)) <
                  2e-7 * (double)(j + 1));
        leave(y);
    }
}

static void step_of_adam(int64_t size, int64_t number, double most) {
    struct mc_tensor tensor = {size,
                               draw(room(size), size),
                               draw(room(size), size),
                               draw(room(size), size),
                               draw(room(size), size),
                               draw(room(size), size)};
    float *before = room(4 * size);
    double squares = 0.0;
    for (int64_t i = 0; i < size; i++) {
        tensor.square[i] = fabsf(tensor.square[i]);
        before[i] = tensor.weight[i];
        before[size + i] = tensor.mean[i];
        before[2 * size + i] = tensor.square[i];
        before[3 * size + i] = tensor.target[i];
        squares += (double)tensor.gradient[i] * (double)tensor.gradient[i];
    }
    float last = (float)(number - 1);
    struct mc_descent descent = {&tensor, 1, 1e-2, 0.9, 0.999, 1e-8, &last, most, 0.02};
    double norm = mc_descend(&descent), scale = fmin(1.0, most / sqrt(squares));
    CHECK(last == (float)number);
    CHECK(fabs(norm - sqrt(squares)) <= 1e-5 * norm);
    for (int64_t i = 0; i < size; i++) {
        double g = scale * (double)tensor.gradient[i];
        double mean = 0.9 * (double)before[size + i] + 0.1 * g;
        double square = 0.999 * (double)before[2 * size + i] + 0.001 * g * g;
        double rate = 1e-2 / (1.0 - pow(0.9, (double)number)), root = sqrt(1.0 - pow(0.999, (double)number));
        double weight = (double)before[i] - rate * mean / (sqrt(square) / root + 1e-8);
        CHECK(fabs((double)tensor.mean[i] - mean) < 1e-6 && fabs((double)tensor.square[i] - square) < 1e-6);
        CHECK(fabs((double)tensor.weight[i] - weight) < 1e-5 * (1.0 + fabs(weight)));
        CHECK(fabs((double)tensor.target[i] - 0.98 * (double)before[3 * size + i] -
                   0.02 * (double)tensor.weight[i]) < 1e-6);
    }
    descent.share = 1.0;
    mc_descend(&descent);
    CHECK(!memcmp(tensor.target, tensor.weight, (size_t)size * sizeof(float)));
    float *all[] = {tensor.weight, tensor.gradient, tensor.mean, tensor.square, tensor.target, before};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        leave(all[i]);
}

TEST(adam_clips_and_steps_as_published) {
    EACH_LEVEL for (int64_t size = 1; size <= 9000; size += size < 70 ? 1 : 2977) {
        step_of_adam(size, 1 + size % 7, 0.5);
        step_of_adam(size, 1000, 1e6);
    }
}

TEST(a_gradient_that_is_not_finite_reaches_the_weights) {
    EACH_LEVEL {
        float weight[3] = {0}, gradient[3] = {0, NAN, 0}, mean[3] = {0}, square[3] = {0};
        float number = 0;
        struct mc_tensor tensor = {3, weight, gradient, mean, square, NULL};
        struct mc_descent descent = {&tensor, 1, 1e-2, 0.9, 0.999, 1e-8, &number, 1.0, 0.0};
        CHECK(isnan(mc_descend(&descent)) && isnan(weight[0]) && isnan(weight[2]));
    }
}

static double place(void *count) { /* 0, 1/8, ..., 7/8, 0, ... */
    return (double)((*(int64_t *)count)++ % 8) / 8.0;
}

TEST(a_choice_computes_the_layers_and_then_explores) {
    EACH_LEVEL for (int64_t rows = 1; rows <= 9; rows++) {
        struct one one = make(rows, 5, 3, MC_LINEAR, 0);
        int64_t drawn = 0, *action = calloc((size_t)rows, sizeof *action);
        double *draws = calloc(2 * (size_t)rows, sizeof *draws);
        double *epsilon = calloc((size_t)rows, sizeof *epsilon);
        struct mc_begun network = {{&one.layer, 1}, rows, one.x, one.x_row},
                        outputs = {{NULL, 0}, rows, one.layer.output, MC_PAD};
        struct mc_uniform uniform = {place, &drawn};
        float *taken = calloc((size_t)rows, sizeof *taken), *best = calloc((size_t)rows, sizeof *best);
        struct mc_choices choices = {3, 0, draws, epsilon, action, taken, best};
        mc_layers_pack(&one.layer, 1);
        mc_act_by_values(&choices, &network, NULL, NULL, 0.0, 0);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t a = 0; a < 3; a++)
                CHECK(one.layer.output[r * MC_PAD + action[r]] >= one.layer.output[r * MC_PAD + a]);
        mc_act_by_values(&choices, &outputs, NULL, &uniform, 0.5, 0);
        CHECK(drawn == 2 * rows);
        for (int64_t r = 0; r < rows; r++) {
            CHECK(taken[r] == one.layer.output[r * MC_PAD + action[r]] && taken[r] <= best[r]);
            if (r % 8 < 4)
                CHECK(action[r] == (int64_t)(3.0 * (double)((rows + r) % 8) / 8.0));
        }
        one.layer.output[2] = INFINITY;
        drawn = 0;
        epsilon[0] = 0.0;
        outputs.rows = 1;
        mc_act_by_values(&choices, &outputs, NULL, &uniform, 1.0, 1);
        CHECK(action[0] == 2 && drawn == 2);
        free(action);
        free(draws);
        free(epsilon);
        free(taken);
        free(best);
        drop(&one);
    }
}

TEST(categories_are_drawn_part_by_part) {
    const int64_t sizes[2] = {2, 3};
    const float outputs[2][5] = {{0, 0, 0, -INFINITY, 0}, {1, -INFINITY, 3, 3, 3}};
    const uint8_t allowed[2][5] = {{1, 1, 1, 1, 1}, {0, 0, 0, 0, 0}};
    struct mc_begun network = {{NULL, 0}, 2, outputs[0], 5};
    int64_t drawn = 0, action[2][2];
    float log_prob[2];
    struct mc_uniform uniform = {place, &drawn};
    mc_act_by_categories(&network, 2, sizes, allowed[0], &uniform, action[0], log_prob);
    /* at 0 and 2/8 in the first row, at 1/8 and 3/8 in the second, from which all values draw alike */
    CHECK(drawn == 4 && action[0][0] == 0 && action[0][1] == 0 && action[1][0] == 0 && action[1][1] == 1);
    CHECK(fabsf(log_prob[0] + logf(4.0f)) < 1e-6f && fabsf(log_prob[1] + logf(6.0f)) < 1e-6f);
    network.rows = 1;
    network.x = outputs[1];
    mc_act_by_categories(&network, 2, sizes, NULL, &uniform, action[1], log_prob);
    CHECK(action[1][0] == 0 && action[1][1] == 1 && fabsf(log_prob[0] + logf(3.0f)) < 1e-6f);
}

TEST(a_level_that_the_processor_lacks_is_not_used) {
    int highest = mc_dense_use(MC_AVX512);
    CHECK(mc_dense_level() == highest && mc_dense_use(MC_BASELINE) == MC_BASELINE);
    CHECK(mc_dense_use(highest) == highest && mc_dense_level() == highest);
}

int main(void) { return run_tests(); }
