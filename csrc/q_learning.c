/* Updates of DQN, CQL and IQN; in torch, see algos/bases/q_learning.py, algos/cql.py, algos/iqn.py. */
#include <errno.h>
#include <math.h>
#include <stddef.h>

#include "dense.h"

/* Sets the gradient of the outputs by that of the action's value. */
static void set_gradient(int64_t actions, int dueling, int64_t action, float slope, float *gradient) {
    float of_mean = dueling ? slope / (float)actions : 0.0f;
    for (int64_t a = 0; a < actions; a++)
        gradient[a] = 0.0f - of_mean;
    gradient[action] = slope - of_mean;
    if (dueling)
        gradient[actions] = slope;
}

static const struct mc_layer *last_of(const struct mc_chain *chain) {
    return &chain->layers[chain->count - 1];
}

static void pack(const struct mc_values_network *network) {
    const struct mc_chain *const chains[] = {&network->torso, &network->embedding, &network->head};
    for (int k = 0; k < 3; k++)
        mc_layers_pack(chains[k]->layers, chains[k]->count);
}

/* Each row's features, times the embeddings of its fractions. */
static void multiply(const struct mc_q_learning *q, const struct mc_values_network *network, const float *x,
                     int64_t count, const float *fractions, int shared) {
    int64_t pitch = mc_padded(q->features), embeddings = shared ? count : q->rows * count, x_row = q->x_row;
    mc_dense()->cosines(embeddings, q->cosines, fractions, q->cosine);
    mc_layers_forward(network->embedding.layers, 1, embeddings, q->cosine, mc_padded(q->cosines));
    if (network->torso.count) {
        mc_layers_forward(network->torso.layers, network->torso.count, q->rows, x, x_row);
        x = last_of(&network->torso)->output;
        x_row = pitch;
    }
    const float *embedded = network->embedding.layers->output;
    for (int64_t r = 0; r < q->rows; r++)
        for (int64_t i = r * count; i < (r + 1) * count; i++)
            mc_dense()->scale(q->features, x + r * x_row, embedded + (shared ? i - r * count : i) * pitch, 0,
                              q->product + i * pitch);
}

/* The last layer, with outputs [rows times count, row] for x [rows, x_row] at the fractions [rows, count] or,
 * if they are shared, [count]. */
static const struct mc_layer *outputs_of(const struct mc_q_learning *q,
                                         const struct mc_values_network *network, const float *x,
                                         int64_t count, const float *fractions, int shared) {
    int64_t x_row = q->x_row;
    if (network->embedding.count) {
        multiply(q, network, x, count, fractions, shared);
        x = q->product;
        x_row = mc_padded(q->features);
    }
    mc_layers_forward(network->head.layers, network->head.count, q->rows * count, x, x_row);
    return last_of(&network->head);
}

/* Each row's best action of the next observations, by the mean of its values at the midpoints. */
static void choose(const struct mc_q_learning *q) {
    const struct mc_values_network *network = q->twice ? &q->online : &q->target;
    const struct mc_layer *last = outputs_of(q, network, q->after, q->midpoints, q->shared, 1);
    int64_t row = mc_padded(last->outputs);
    for (int64_t r = 0; r < q->rows; r++) {
        float *mean = last->output + r * q->midpoints * row; /* the first of the rows takes their sum */
        for (int64_t i = 1; i < q->midpoints; i++)
            for (int64_t a = 0; a < q->actions; a++)
                mean[a] += mean[i * row + a];
        q->best[r] = mc_best_value(q->actions, mean, mc_mask_of(q->allowed_after, r, q->actions));
    }
}

/* Adds the losses and slopes of predicted values for a sample of the target: Huber's, weighted by the
 * fractions if there are any. */
static void add_losses(int64_t count, const float *predicted, const float *fractions, float sample,
                       float kappa, float *restrict losses, float *restrict slopes) {
    for (int64_t i = 0; i < count; i++) {
        float away = predicted[i] - sample;
        float least = away < -kappa ? -kappa : away, clipped = least > kappa ? kappa : least;
        float slope = clipped * (fractions ? fabsf(fractions[i] - (float)(away > 0.0f)) : 1.0f);
        slopes[i] += slope;
        losses[i] += slope * (away - 0.5f * clipped);
    }
}

/* Of row r: the logarithm of the sum of the exponentials of its allowed values, less the taken action's
 * value, times `share`; adds its gradient to that of the taken action's value, `slope`. Where no action is
 * allowed, the values count as zeros. */
static float penalty_of(const struct mc_q_learning *q, int64_t r, const float *outputs, float share,
                        float slope, float *gradient) {
    const uint8_t *allowed = mc_mask_of(q->allowed, r, q->actions);
    int64_t action = q->action[r];
    float most = outputs[mc_best_value(q->actions, outputs, allowed)], sum = 0.0f;
    for (int64_t a = 0; a < q->actions; a++)
        sum += allowed && !allowed[a] ? 0.0f : expf(outputs[a] - most);
    if (sum == 0.0f) {
        set_gradient(q->actions, q->dueling, action, slope - share, gradient);
        return share * (logf((float)q->actions) - mc_value_of(q->actions, q->dueling, outputs, action));
    }
    gradient[action] -= share; /* the state's value and the mean advantage cancel out */
    for (int64_t a = 0; a < q->actions; a++)
        gradient[a] += allowed && !allowed[a] ? 0.0f : share * expf(outputs[a] - most) / sum;
    return share * (most + logf(sum) - outputs[action]);
}

/* Of row r: sets its predicted values, their losses and the slopes; returns the last sample of its target. */
static inline float compare(const struct mc_q_learning *q, int64_t r, const float *outputs,
                            const float *future, int64_t row, int64_t count, int64_t sampled) {
    float *predicted = q->line, *losses = predicted + count, *slopes = losses + count, sample = 0.0f;
    const float *fractions = q->fractions ? q->fractions + r * count : NULL;
    for (int64_t i = 0; i < count; i++) {
        predicted[i] = mc_value_of(q->actions, q->dueling, outputs + i * row, q->action[r]);
        losses[i] = slopes[i] = 0.0f;
    }
    for (int64_t j = 0; j < sampled; j++) {
        float value = mc_value_of(q->actions, q->dueling, future + j * row, q->best[r]);
        sample = q->discount[r] * value + (float)q->reward_scale * q->reward[r];
        add_losses(count, predicted, fractions, sample, (float)q->kappa, losses, slopes);
    }
    return sample;
}

/* Sets the losses, the priorities, and the gradient of the outputs. Loops over one value vanish if the
 * numbers of values are constants of the call, and no store changes the copy of q. */
static inline __attribute__((always_inline)) void judge(struct mc_q_learning *to, int64_t count,
                                                        int64_t sampled) {
    const struct mc_q_learning copy = *to, *q = &copy;
    const struct mc_layer *last = last_of(&q->online.head);
    int64_t row = mc_padded(last->outputs), actions = q->actions;
    const float *outputs = last->output, *future = last_of(&q->target.head)->output;
    const float *predicted = q->line, *losses = predicted + count, *slopes = losses + count;
    float *gradient = last->gradient, scale = 1.0f / ((float)q->kappa * (float)sampled);
    double loss = 0.0, penalty = 0.0, sum = 0.0;
    for (int64_t r = 0; r < q->rows; r++, future += sampled * row) {
        float sample = compare(q, r, outputs, future, row, count, sampled), error = 0.0f,
              share = q->weight[r] / (float)q->rows;
        for (int64_t i = 0; i < count; i++, outputs += row, gradient += row) {
            sum += (double)predicted[i];
            error += losses[i] * scale;
            float slope = share * scale * slopes[i];
            set_gradient(actions, q->dueling, q->action[r], slope, gradient);
            if (q->alpha > 0.0)
                penalty += (double)penalty_of(q, r, outputs, (float)q->alpha * share, slope, gradient);
        }
        loss += (double)(share * error);
        q->error[r] = q->fractions ? error : fabsf(predicted[0] - sample);
    }
    to->penalty = penalty;
    to->loss = loss + penalty;
    to->q_mean = sum / ((double)(q->rows * count) * q->reward_scale);
}

/* The gradients of all layers, after the outputs for x and `judge`. */
static void backward(const struct mc_q_learning *q) {
    const struct mc_values_network *network = &q->online;
    const struct mc_chain *torso = &network->torso, *head = &network->head;
    if (!network->embedding.count) {
        mc_layers_backward(head->layers, head->count, q->rows, q->x, q->x_row, NULL, 1);
        return;
    }
    const struct mc_layer *embedding = network->embedding.layers;
    int64_t count = q->predicted, rows = q->rows * count, pitch = mc_padded(q->features);
    mc_layers_backward(head->layers, head->count, rows, q->product, pitch, q->slope, 1);
    const float *x = torso->count ? last_of(torso)->output : q->x;
    float *of_torso = torso->count ? last_of(torso)->gradient : NULL;
    int64_t x_row = torso->count ? pitch : q->x_row;
    for (int64_t r = 0; r < q->rows; r++)
        for (int64_t i = 0; i < count; i++) {
            int64_t at = (r * count + i) * pitch;
            mc_dense()->scale(q->features, q->slope + at, x + r * x_row, 0, embedding->gradient + at);
            if (of_torso)
                mc_dense()->scale(q->features, q->slope + at, embedding->output + at, i > 0,
                                  of_torso + r * pitch);
        }
    mc_layers_backward(embedding, 1, rows, q->cosine, mc_padded(q->cosines), NULL, 1);
    if (torso->count)
        mc_layers_backward(torso->layers, torso->count, q->rows, q->x, q->x_row, NULL, 1);
}

int mc_q_update(struct mc_q_learning *q) {
    for (int64_t r = 0; r < q->rows; r++)
        if (q->action[r] < 0 || q->action[r] >= q->actions)
            return -EINVAL;
    pack(&q->online);
    pack(&q->target);
    if (!q->twice) /* otherwise afterwards, so that both passes by `online` find its weights in the cache */
        choose(q);
    if (q->twice || q->target.embedding.count)
        outputs_of(q, &q->target, q->after, q->sampled, q->of_samples, 0);
    if (q->twice)
        choose(q);
    outputs_of(q, &q->online, q->x, q->predicted, q->fractions, 0);
    if (q->predicted == 1 && q->sampled == 1)
        judge(q, 1, 1);
    else
        judge(q, q->predicted, q->sampled);
    backward(q);
    q->norm = mc_descend(q->descent);
    return 0;
}
