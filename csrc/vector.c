/* Rows of several lanes, at most one row per lane: all are checked before the first is written. */
#include <errno.h>

#include "core.h"

static int mc_vector_flags(uint64_t n, uint64_t i, const uint8_t *ends, int finals) {
    int flags = !!ends[i] * MC_TERMINATED | !!ends[n + i] * MC_TRUNCATED;
    return flags && finals ? flags | MC_BOUNDARY : flags;
}

static uint8_t *mc_vector_record(const struct mc_vector *vector, uint64_t i) {
    return vector->records + 2 * i * vector->writers[0].lane.column[0].stride;
}

/* Each row leaves its number with its writer: of two rows with one writer, one finds the other's number. */
static int mc_vector_enter(struct mc_vector *vector, uint64_t n, const int64_t *which) {
    uint64_t count = vector->count;
    if (count == 0)
        return -ESHUTDOWN;
    for (uint64_t i = 0; i < n; i++) {
        if ((uint64_t)which[i] >= count)
            return -EINVAL;
        vector->writers[which[i]].row = i;
    }
    for (uint64_t i = 0; i < n; i++)
        if (vector->writers[which[i]].row != i)
            return -EINVAL;
    return 0;
}

/* For rows whose tickets are withheld: the pledges of all lanes, for one write to the disk. */
__attribute__((noinline)) static int mc_vector_pledge(struct mc_vector *vector, uint64_t n,
                                                      const int64_t *which, const uint8_t *ends, int finals) {
    const struct mc_lane *low = NULL, *high = NULL;
    for (uint64_t i = 0; i < n; i++) {
        const struct mc_lane *lane = &vector->writers[which[i]].lane;
        if (!mc_lane_pledge_next(lane, mc_rows_of(mc_vector_flags(n, i, ends, finals))))
            continue;
        low = !low || lane->counters < low->counters ? lane : low;
        high = !high || lane->counters > high->counters ? lane : high;
    }
    int error = low ? mc_lanes_sync(low, high) : 0;
    for (uint64_t i = 0; i < n && low && !error; i++) {
        const struct mc_lane *lane = &vector->writers[which[i]].lane;
        if (low->counters <= lane->counters && lane->counters <= high->counters)
            mc_lane_uphold(lane);
    }
    return error;
}

int mc_vector_check(struct mc_vector *vector, uint64_t n, const int64_t *which, const uint8_t *ends,
                    int finals) {
    int error = mc_vector_enter(vector, n, which), pledged = 0;
    if (error)
        return error;
    for (uint64_t i = 0; i < n; i++) {
        struct mc_lane *lane = &vector->writers[which[i]].lane;
        int flags = mc_vector_flags(n, i, ends, finals);
        uint64_t first;
        if (!mc_reward_finite(mc_vector_record(vector, i)))
            return -EDOM;
        if (flags & MC_TRUNCATED && !finals && vector->final_needed)
            return -EPROTO;
        error = mc_lane_peek(lane, mc_rows_of(flags), &first);
        if (error == -EDQUOT) {
            error = pledged++ ? 0 : mc_vector_pledge(vector, n, which, ends, finals);
            error = error ? error : mc_lane_next(lane, mc_rows_of(flags), &first);
        }
        if (error)
            return error;
        __builtin_prefetch(lane->column[0].base + first % lane->capacity * lane->column[0].stride, 1);
    }
    return 0;
}

/* Lends row i to its writer. */
static void mc_vector_lend(const struct mc_vector *vector, uint64_t i, struct mc_writer *writer, int flags) {
    writer->records = mc_vector_record(vector, i);
    writer->policy_version = vector->policy_version;
    for (uint64_t k = 1; k < writer->lane.columns; k++) {
        uint64_t offset = i * writer->lane.column[k].size;
        writer->frames[k] = (const uint8_t *)vector->frames[k] + offset;
        if (flags & MC_BOUNDARY && vector->final_frames[k])
            writer->final_frames[k] = (const uint8_t *)vector->final_frames[k] + offset;
    }
}

int mc_vector_add(struct mc_vector *vector, uint64_t n, const int64_t *which, const uint8_t *ends, int finals,
                  int64_t *tickets) {
    const uint8_t *left_out = ends + 2 * n;
    uint64_t rows = 0;
    int error = mc_vector_check(vector, n, which, ends, finals);
    for (uint64_t i = 0; i < n && !error; i++) {
        struct mc_writer *writer = &vector->writers[which[i]];
        int flags = mc_vector_flags(n, i, ends, finals);
        tickets[i] = -1;
        if (left_out[i]) {
            writer->age = 0;
            continue;
        }
        mc_vector_lend(vector, i, writer, flags);
        tickets[i] = mc_writer_put(writer, flags);
        if (tickets[i] < 0)
            error = (int)tickets[i]; /* damaged since the check */
        else
            rows += mc_rows_of(flags);
    }
    if (rows)
        mc_lane_notify(&vector->writers[0].lane, rows);
    return error;
}
