/* PPO's objective: each row's log-probability and entropy, and their slopes by the policy's outputs. */
#include <math.h>
#include <string.h>

#include "dense.h"

struct judged { /* of one row; sums over an action's components */
    float log_prob, entropy;
};

/* One choice among n values: `slope` and `bend` become the slopes of its log-probability and its entropy. If
 * nothing is allowed, the outputs count as 0. */
static void add_choice(struct judged *sum, const float *x, int64_t n, int64_t taken, const uint8_t *allowed,
                       float *slope, float *bend) {
    int64_t choices = 0;
    float most = -INFINITY, total = 0.0f, entropy = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        int is_choice = !allowed || allowed[i];
        choices += is_choice;
        slope[i] = is_choice ? x[i] : -INFINITY;
        most = slope[i] > most ? slope[i] : most;
    }
    if (!choices) {
        memset(slope, 0, (size_t)n * sizeof *slope);
        most = 0.0f;
    }
    for (int64_t i = 0; i < n; i++)
        total += bend[i] = expf(slope[i] - most);
    float log_total = logf(total);
    for (int64_t i = 0; i < n; i++) {
        slope[i] = slope[i] - most - log_total;
        bend[i] /= total;
        entropy -= bend[i] != 0.0f ? bend[i] * slope[i] : 0.0f;
    }
    sum->log_prob += slope[taken];
    sum->entropy += entropy;
    for (int64_t i = 0; i < n; i++) {
        int is_trained = choices && (!allowed || allowed[i]);
        float probability = bend[i];
        bend[i] = is_trained && probability != 0.0f ? -probability * (slope[i] + entropy) : 0.0f;
        slope[i] = is_trained ? (float)(i == taken) - probability : 0.0f;
    }
}

/* `bend` becomes the slope of the log-probability by log_std; that of the entropy is 1. */
static void add_normal(struct judged *sum, float mean, float log_std, float drawn, float *slope,
                       float *bend) {
    const float half_log_2pi = 0.918938533f;
    float precision = expf(-log_std), noise = (drawn - mean) * precision;
    sum->log_prob -= 0.5f * noise * noise + log_std + half_log_2pi;
    sum->entropy += log_std + half_log_2pi + 0.5f;
    *slope = noise * precision;
    *bend = noise * noise - 1.0f;
}

/* Judges the action in the batch's row `number` by its outputs x; leaves their slopes in `slopes`. */
static struct judged judge(const struct mc_clipped *batch, int64_t number, const float *x) {
    struct judged sum = {0.0f, 0.0f};
    int64_t n = batch->outputs, first = 0;
    float *slope = batch->slopes, *bend = slope + n;
    for (int64_t i = 0; i < batch->components; i++) {
        int64_t at = number * batch->components + i;
        if (batch->sizes) {
            add_choice(&sum, x + first, batch->sizes[i], batch->action[at],
                       batch->allowed ? batch->allowed + number * n + first : NULL, slope + first,
                       bend + first);
            first += batch->sizes[i];
        } else if (batch->log_std) {
            add_normal(&sum, x[i], batch->log_std[i], batch->drawn[at], slope + i, bend + i);
        } else {
            float of_bit[2] = {0.0f, x[i]}, slopes[2], bends[2];
            add_choice(&sum, of_bit, 2, batch->action[at], NULL, slopes, bends);
            slope[i] = slopes[1];
            bend[i] = bends[1];
        }
    }
    return sum;
}

void mc_clipped_judge(const struct mc_clipped *batch, int64_t rows, float *log_prob) {
    for (int64_t r = 0; r < rows; r++)
        log_prob[r] = judge(batch, r, batch->output + r * mc_padded(batch->outputs)).log_prob;
}

/* Adds a row's terms of the policy's loss; returns the loss's slope by the log-probability. */
static float policy_slope(const struct mc_clipped *batch, int64_t number, float log_prob, double *terms) {
    const float most = MC_MOST_LOG_RATIO;
    float low = (float)(1.0 - batch->clip), high = (float)(1.0 + batch->clip);
    float difference = log_prob - batch->before[number];
    int is_too_far = difference > most; /* false for NaN, which stays */
    float moved = is_too_far ? most : difference, ratio = expf(moved);
    float inside = ratio < low ? low : ratio > high ? high : ratio;
    float own = batch->advantage[number] * ratio, bound = batch->advantage[number] * inside;
    terms[MC_POLICY_LOSS] -= (double)(own < bound ? own : bound);
    terms[MC_KL] += (double)(ratio - 1.0f - moved);
    terms[MC_BEYOND] += ratio != inside;
    return is_too_far || own > bound ? 0.0f : -own; /* NaN stays */
}

/* Adds a row's term of the critic's loss; returns the loss's slope by the value. */
static float value_slope(const struct mc_clipped *batch, int64_t number, float value, double *terms) {
    float before = batch->value[number], target = batch->target[number];
    float moved = value - before, most = (float)batch->clip_value;
    float error = value - target, other = (moved < 0.0f ? before - most : before + most) - target;
    int is_clipped = fabsf(moved) > most && other * other > error * error;
    terms[MC_VALUE_LOSS] += 0.5 * (double)(is_clipped ? other * other : error * error);
    return is_clipped ? 0.0f : error;
}

void mc_clipped_slopes(const struct mc_clipped *batch, int64_t rows, const int64_t *numbers, double *means) {
    double terms[MC_TERMS] = {0.0};
    int64_t n = batch->outputs, pitch = mc_padded(n);
    float share = 1.0f / (float)rows, bonus = (float)batch->bonus;
    float *slope = batch->slopes, *bend = slope + n, *of_std = batch->log_std_gradient;
    for (int64_t i = 0; of_std && i < n; i++)
        of_std[i] = -bonus;
    for (int64_t r = 0; r < rows; r++) {
        float *gradient = batch->output_gradient + r * pitch;
        struct judged now = judge(batch, numbers[r], batch->output + r * pitch);
        float of_log_prob = policy_slope(batch, numbers[r], now.log_prob, terms);
        float of_value = value_slope(batch, numbers[r], batch->prediction[r * MC_PAD], terms);
        for (int64_t i = 0; i < n; i++) {
            gradient[i] = share * (of_log_prob * slope[i] - (of_std ? 0.0f : bonus * bend[i]));
            if (of_std)
                of_std[i] += share * of_log_prob * bend[i];
        }
        batch->prediction_gradient[r * MC_PAD] = share * (float)batch->value_coefficient * of_value;
        terms[MC_ENTROPY] += (double)now.entropy;
    }
    for (int k = 0; k < MC_TERMS; k++)
        means[k] = terms[k] / (double)rows;
    means[MC_LOSS] = means[MC_POLICY_LOSS] + batch->value_coefficient * means[MC_VALUE_LOSS] -
                     batch->bonus * means[MC_ENTROPY];
}
