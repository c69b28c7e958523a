/* Values of actions, and the updates of DQN, CQL and IQN; algos/bases/q_learning.py, algos/cql.py and
 * algos/iqn.py are their text. A row's outputs are the values of its actions or, with dueling, the actions'
 * advantages and after them the state's value, to which an advantage adds less the mean advantage. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "dense.h"

static const uint8_t *of_row(const uint8_t *allowed, int64_t r, int64_t actions) {
    return allowed ? allowed + r * actions : NULL;
}

static int64_t best_of(int64_t actions, const float *outputs, const uint8_t *allowed) {
    int64_t best = 0;
    float most = -INFINITY;
    for (int64_t a = 0; a < actions; a++) {
        float value = allowed && !allowed[a] ? -INFINITY : outputs[a];
        if (value > most || (isnan(value) && !isnan(most))) { /* as torch: a NaN is the greatest */
            most = value;
            best = a;
        }
    }
    return best;
}

static float value_of(int64_t actions, int dueling, const float *outputs, int64_t action) {
    float sum = 0.0f;
    for (int64_t a = 0; dueling && a < actions; a++)
        sum += outputs[a];
    return outputs[action] + (dueling ? outputs[actions] - sum / (float)actions : 0.0f);
}

/* Turns the gradient of the actions' values into that of the outputs. */
static void to_outputs(int64_t actions, int dueling, float *gradient) {
    float sum = 0.0f;
    for (int64_t a = 0; dueling && a < actions; a++)
        sum += gradient[a];
    for (int64_t a = 0; dueling && a < actions; a++)
        gradient[a] -= sum / (float)actions;
    if (dueling)
        gradient[actions] = sum;
}

void mc_values_best(int64_t rows, int64_t actions, const float *outputs, int64_t row, const uint8_t *allowed,
                    int64_t *best) {
    for (int64_t r = 0; r < rows; r++)
        best[r] = best_of(actions, outputs + r * row, of_row(allowed, r, actions));
}

void mc_values_taken(int64_t rows, int64_t actions, int dueling, const float *outputs, int64_t row,
                     const int64_t *action, float *value) {
    for (int64_t r = 0; r < rows; r++)
        value[r] = value_of(actions, dueling, outputs + r * row, action[r]);
}

static const struct mc_layer *last_of(const struct mc_chain *chain) {
    return &chain->layers[chain->count - 1];
}

static void pack(const struct mc_chain *chain) { mc_layers_pack(chain->layers, chain->count); }

static int any_unknown(const struct mc_values *values, const int64_t *action) {
    for (int64_t r = 0; r < values->rows; r++)
        if (action[r] < 0 || action[r] >= values->actions)
            return 1;
    return 0;
}

/* Of a row: the logarithm of the sum of the exponentials of its allowed values, less the taken action's
 * value; adds its gradient, times the weight. Where no action is allowed, the values count as zeros. */
static float penalty_of(const struct mc_values *v, const float *outputs, const uint8_t *allowed,
                        int64_t action, float weight, float *gradient) {
    float taken = value_of(v->actions, v->dueling, outputs, action), rest = taken - outputs[action];
    float most = outputs[best_of(v->actions, outputs, allowed)], sum = 0.0f;
    for (int64_t a = 0; a < v->actions; a++)
        sum += allowed && !allowed[a] ? 0.0f : expf(outputs[a] - most);
    gradient[action] -= weight;
    if (sum == 0.0f)
        return logf((float)v->actions) - taken;
    for (int64_t a = 0; a < v->actions; a++)
        gradient[a] += allowed && !allowed[a] ? 0.0f : weight * expf(outputs[a] - most) / sum;
    return most + rest + logf(sum) - taken;
}

int mc_dqn_update(struct mc_dqn *dqn, const struct mc_batch *batch) {
    struct mc_values *v = &dqn->values;
    if (any_unknown(v, batch->action))
        return -EINVAL;
    int64_t rows = v->rows, actions = v->actions;
    const float *after = v->x + rows * v->x_row;
    pack(&dqn->online);
    pack(&dqn->target);
    mc_layers_forward(dqn->online.layers, dqn->online.count, v->twice ? 2 * rows : rows, v->x, v->x_row);
    mc_layers_forward(dqn->target.layers, dqn->target.count, rows, after, v->x_row);
    const struct mc_layer *last = last_of(&dqn->online);
    int64_t row = mc_padded(last->outputs);
    const float *outputs = last->output, *future = last_of(&dqn->target)->output;
    const float *chooser = v->twice ? outputs + rows * row : future;
    float *gradient = last->gradient;
    float scale = (float)v->reward_scale;
    double loss = 0.0, penalty = 0.0, sum = 0.0;
    for (int64_t r = 0; r < rows; r++, outputs += row, future += row, chooser += row, gradient += row) {
        int64_t best = best_of(actions, chooser, of_row(batch->allowed_after, r, actions));
        int64_t action = batch->action[r];
        float value = value_of(actions, v->dueling, future, best);
        float target = batch->discount[r] * value + scale * batch->reward[r];
        float taken = value_of(actions, v->dueling, outputs, action), away = taken - target;
        float clipped = away > 1.0f ? 1.0f : away < -1.0f ? -1.0f : away;
        float slope = batch->weight[r] * clipped / (float)rows;
        memset(gradient, 0, (size_t)actions * sizeof *gradient);
        gradient[action] = slope;
        if (dqn->alpha > 0.0) {
            float weight = (float)dqn->alpha * batch->weight[r] / (float)rows;
            const uint8_t *allowed = of_row(batch->allowed, r, actions);
            penalty += (double)(weight * penalty_of(v, outputs, allowed, action, weight, gradient));
        }
        to_outputs(actions, v->dueling, gradient);
        batch->error[r] = fabsf(away);
        loss += (double)(slope * (away - 0.5f * clipped));
        sum += (double)taken;
    }
    mc_layers_backward(dqn->online.layers, dqn->online.count, rows, v->x, v->x_row, NULL, 1);
    v->norm = mc_descend(v->descent);
    v->q_mean = sum / ((double)rows * v->reward_scale);
    v->loss = loss + penalty;
    dqn->penalty = penalty;
    return 0;
}

/* The outputs [rows times count, row] of a network for x [rows, x_row] at the fractions [rows, count] or, if
 * they are shared, [count]. */
static void quantiles(const struct mc_iqn *iqn, const struct mc_quantiles *network, const float *x,
                      int64_t count, const float *fractions, int shared) {
    int64_t rows = iqn->values.rows, pitch = mc_padded(iqn->features), x_row = iqn->values.x_row;
    int64_t embeddings = shared ? count : rows * count;
    mc_dense()->cosines(embeddings, iqn->cosines, fractions, iqn->cosine);
    mc_layers_forward(network->embedding.layers, 1, embeddings, iqn->cosine, mc_padded(iqn->cosines));
    mc_layers_forward(network->torso.layers, network->torso.count, rows, x, x_row);
    if (network->torso.count) {
        x = last_of(&network->torso)->output;
        x_row = pitch;
    }
    const float *embedded = network->embedding.layers->output;
    float *restrict product = iqn->product;
    for (int64_t i = 0; i < rows * count; i++) {
        const float *feature = x + i / count * x_row, *by = embedded + (shared ? i % count : i) * pitch;
        for (int64_t k = 0; k < iqn->features; k++)
            product[i * pitch + k] = feature[k] * by[k];
    }
    mc_layers_forward(network->head.layers, network->head.count, rows * count, product, pitch);
}

/* Each row's best action of the next observations, by the mean of its values at the midpoints. */
static void choose(const struct mc_iqn *iqn, const float *after, const uint8_t *allowed) {
    const struct mc_values *v = &iqn->values;
    const struct mc_quantiles *network = v->twice ? &iqn->online : &iqn->target;
    quantiles(iqn, network, after, iqn->midpoints, iqn->shared, 1);
    const struct mc_layer *last = last_of(&network->head);
    int64_t row = mc_padded(last->outputs);
    for (int64_t r = 0; r < v->rows; r++) {
        float *mean = last->output + r * iqn->midpoints * row; /* the first of the rows takes their sum */
        for (int64_t i = 1; i < iqn->midpoints; i++)
            for (int64_t a = 0; a < v->actions; a++)
                mean[a] += mean[i * row + a];
        iqn->best[r] = best_of(v->actions, mean, of_row(allowed, r, v->actions));
    }
}

/* Adds the losses and slopes of predicted quantiles for a sample of the target. */
static void add_losses(int64_t count, const float *predicted, const float *fractions, float sample,
                       float kappa, float *restrict losses, float *restrict slopes) {
    for (int64_t i = 0; i < count; i++) {
        float away = predicted[i] - sample;
        float least = away < -kappa ? -kappa : away, clipped = least > kappa ? kappa : least;
        float slope = fabsf(fractions[i] - (float)(away > 0.0f)) * clipped;
        slopes[i] += slope;
        losses[i] += slope * (away - 0.5f * clipped);
    }
}

/* Sets the loss, and the gradient of the head's outputs. */
static void iqn_loss(struct mc_iqn *iqn, const struct mc_batch *batch, const float *fractions) {
    struct mc_values *v = &iqn->values;
    const struct mc_layer *last = last_of(&iqn->online.head);
    int64_t row = mc_padded(last->outputs), actions = v->actions, count = iqn->predicted;
    const float *outputs = last->output, *future = last_of(&iqn->target.head)->output;
    float *gradient = last->gradient, scale = 1.0f / ((float)iqn->kappa * (float)iqn->sampled);
    float *predicted = iqn->line, *losses = predicted + count, *slopes = losses + count;
    double loss = 0.0, sum = 0.0;
    for (int64_t r = 0; r < v->rows; r++, fractions += count) {
        int64_t action = batch->action[r];
        memset(losses, 0, 2 * (size_t)count * sizeof *losses);
        for (int64_t i = 0; i < count; i++, outputs += row)
            sum += (double)(predicted[i] = value_of(actions, v->dueling, outputs, action));
        for (int64_t j = 0; j < iqn->sampled; j++, future += row) {
            float value = value_of(actions, v->dueling, future, iqn->best[r]);
            float sample = batch->discount[r] * value + (float)v->reward_scale * batch->reward[r];
            add_losses(count, predicted, fractions, sample, (float)iqn->kappa, losses, slopes);
        }
        float error = 0.0f, weight = batch->weight[r] * scale / (float)v->rows;
        for (int64_t i = 0; i < count; i++, gradient += row) {
            error += losses[i] * scale;
            memset(gradient, 0, (size_t)actions * sizeof *gradient);
            gradient[action] = weight * slopes[i];
            to_outputs(actions, v->dueling, gradient);
        }
        batch->error[r] = error;
        loss += (double)(batch->weight[r] * error);
    }
    v->loss = loss / (double)v->rows;
    v->q_mean = sum / ((double)(v->rows * count) * v->reward_scale);
}

/* The gradients of all layers, after `quantiles` of x and `iqn_loss`. */
static void iqn_backward(const struct mc_iqn *iqn) {
    const struct mc_values *v = &iqn->values;
    const struct mc_quantiles *network = &iqn->online;
    const struct mc_layer *embedding = network->embedding.layers;
    const struct mc_layer *torso = network->torso.count ? last_of(&network->torso) : NULL;
    int64_t count = iqn->predicted, rows = v->rows * count, pitch = mc_padded(iqn->features);
    mc_layers_backward(network->head.layers, network->head.count, rows, iqn->product, pitch, iqn->slope, 1);
    const float *x = torso ? torso->output : v->x;
    int64_t x_row = torso ? pitch : v->x_row;
    if (torso)
        memset(torso->gradient, 0, (size_t)(v->rows * pitch) * sizeof *torso->gradient);
    for (int64_t i = 0; i < rows; i++) {
        const float *slope = iqn->slope + i * pitch, *feature = x + i / count * x_row;
        const float *embedded = embedding->output + i * pitch;
        float *restrict of_embedding = embedding->gradient + i * pitch;
        float *restrict of_feature = torso ? torso->gradient + i / count * pitch : NULL;
        for (int64_t k = 0; k < iqn->features; k++)
            of_embedding[k] = slope[k] * feature[k];
        for (int64_t k = 0; torso && k < iqn->features; k++)
            of_feature[k] += slope[k] * embedded[k];
    }
    mc_layers_backward(embedding, 1, rows, iqn->cosine, mc_padded(iqn->cosines), NULL, 1);
    if (torso)
        mc_layers_backward(network->torso.layers, network->torso.count, v->rows, v->x, v->x_row, NULL, 1);
}

int mc_iqn_update(struct mc_iqn *iqn, const struct mc_batch *batch, const float *fractions,
                  const float *of_samples) {
    struct mc_values *v = &iqn->values;
    if (any_unknown(v, batch->action))
        return -EINVAL;
    const float *after = v->x + v->rows * v->x_row;
    for (int k = 0; k < 2; k++) {
        const struct mc_quantiles *network = k ? &iqn->target : &iqn->online;
        pack(&network->torso);
        pack(&network->embedding);
        pack(&network->head);
    }
    choose(iqn, after, batch->allowed_after);
    quantiles(iqn, &iqn->target, after, iqn->sampled, of_samples, 0);
    quantiles(iqn, &iqn->online, v->x, iqn->predicted, fractions, 0);
    iqn_loss(iqn, batch, fractions);
    iqn_backward(iqn);
    v->norm = mc_descend(v->descent);
    return 0;
}
