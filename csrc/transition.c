/* Transitions on a lane: the head of each record holds the row's place in its episode. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "core.h"

static struct mc_row mc_row_of(uint64_t word) {
    struct mc_row row = {0};
    memcpy(&row, &word, sizeof word);
    return row;
}

uint32_t mc_transitions_of(uint64_t rows, uint64_t word) {
    struct mc_row newest = mc_row_of(word);
    return rows ? newest.ordinal + !mc_row_is_boundary(&newest) : 0;
}

int mc_writer_open(struct mc_writer *writer) {
    uint64_t rows, word;
    int error = mc_lane_check(&writer->lane);
    if (!error)
        error = mc_lane_newest(&writer->lane, &rows, &word);
    if (error)
        return -EUCLEAN;
    writer->age = 0;
    writer->ordinal = mc_transitions_of(rows, word);
    return 0;
}

/* About half of MC_AGE_LIMIT, and a multiple of the columns' intervals, so that ages keep their phase. */
static uint32_t mc_whole_intervals(const struct mc_lane *lane) {
    uint32_t every = 1;
    for (uint64_t k = 1; k < lane->columns; k++)
        if (lane->column[k].every > every)
            every = (uint32_t)lane->column[k].every;
    return MC_AGE_LIMIT / 2 / every * every;
}

uint32_t mc_age_after(const struct mc_lane *lane, uint32_t age) {
    return age + 1 < MC_AGE_LIMIT ? age + 1 : MC_AGE_LIMIT - mc_whole_intervals(lane);
}

/* Takes the lane until mc_writer_leave. The previous writer of a shared lane may have been killed in the
 * middle of an append, so each turn begins like a successor. */
static int mc_writer_enter(struct mc_writer *writer) {
    if (writer->closed)
        return -ESHUTDOWN;
    if (!writer->lock_offset)
        return 0;
    int error = mc_lock_wait(writer->lock_fd, writer->lock_offset, writer->lock_wait_ns);
    if (error)
        return error;
    error = mc_writer_open(writer);
    if (error)
        mc_lock_drop(writer->lock_fd, writer->lock_offset);
    return error;
}

static void mc_writer_leave(struct mc_writer *writer) {
    if (writer->lock_offset)
        mc_lock_drop(writer->lock_fd, writer->lock_offset);
}

/* Writes the head of one record, in which the caller has put the reward. */
static void mc_writer_head(struct mc_writer *writer, uint8_t *record, int flags) {
    struct mc_row row;
    memcpy(&row, record, sizeof row);
    row.ordinal = writer->ordinal;
    row.place = writer->age | (uint32_t)flags << MC_FLAGS_SHIFT;
    row.policy_version = writer->policy_version;
    memcpy(record, &row, sizeof row);
    writer->ordinal += !(flags & MC_BOUNDARY);
    if (writer->lock_offset)
        return; /* rows of a shared lane follow no other row */
    writer->age = mc_age_after(&writer->lane, writer->age);
}

/* Columns at intervals: writes the entry of the row just headed, if it is due. An episode's first row has
 * none; the rest of the episode keeps a distance of `every` tickets, so that no two entries share a row. */
static void mc_writer_put_intervals(struct mc_writer *writer, uint64_t ticket, uint32_t age,
                                    const void *const *sources, uint64_t nth) {
    for (uint64_t k = 1; k < writer->lane.columns; k++) {
        const struct mc_column *column = &writer->lane.column[k];
        if (column->every > 1 && age > 0 && age % column->every == 0)
            mc_lane_put_interval(&writer->lane, k, ticket, (const uint8_t *)sources[k] + nth * column->size);
    }
}

int mc_reward_finite(const uint8_t *record) {
    float reward;
    memcpy(&reward, record + offsetof(struct mc_row, reward), sizeof reward);
    return isfinite(reward);
}

int64_t mc_writer_put(struct mc_writer *writer, int flags) {
    uint64_t bytes = writer->lane.column[0].stride;
    uint64_t rows = mc_rows_of(flags);
    uint64_t first;
    int error = mc_lane_reserve(&writer->lane, rows, &first);
    if (error)
        return error;
    uint32_t age = writer->age;
    mc_writer_head(writer, writer->records, flags & (MC_TERMINATED | MC_TRUNCATED));
    writer->frames[0] = writer->records;
    mc_lane_put(&writer->lane, first, 1, writer->frames);
    mc_writer_put_intervals(writer, first, age, writer->frames, 0);
    if (rows == 2) {
        mc_writer_head(writer, writer->records + bytes, MC_BOUNDARY);
        writer->final_frames[0] = writer->records + bytes;
        mc_lane_put(&writer->lane, first + 1, 1, writer->final_frames);
    }
    if (flags)
        writer->age = 0;
    mc_lane_commit(&writer->lane, first, rows);
    return (int64_t)first;
}

int64_t mc_writer_add(struct mc_writer *writer, int flags) {
    if (!mc_reward_finite(writer->records))
        return -EDOM;
    int error = mc_writer_enter(writer);
    if (error)
        return error;
    int64_t ticket = mc_writer_put(writer, flags);
    if (ticket >= 0)
        mc_lane_notify(&writer->lane, mc_rows_of(flags));
    mc_writer_leave(writer);
    return ticket;
}

/* Before any write: all rows must be valid. */
static int mc_rows_check(const struct mc_writer *writer, uint64_t n, const uint8_t *records,
                         const uint8_t *ends, int boundaries) {
    const uint8_t *truncated = ends + n, *boundary = ends + 2 * n;
    uint64_t bytes = writer->lane.column[0].stride;
    for (uint64_t i = 0; i < n; i++) {
        if (!boundary[i] && !mc_reward_finite(records + i * bytes))
            return -EDOM;
        if (truncated[i] && boundaries && !(i + 1 < n && boundary[i + 1]))
            return -EPROTO;
    }
    return 0;
}

static int64_t mc_writer_put_rows(struct mc_writer *writer, uint64_t n, uint8_t *records,
                                  const void *const *frames, const uint8_t *ends) {
    const uint8_t *terminated = ends, *truncated = ends + n, *boundary = ends + 2 * n;
    const void *sources[MC_MAX_COLUMNS];
    uint64_t bytes = writer->lane.column[0].stride;
    uint64_t first;
    int error = mc_lane_reserve(&writer->lane, n, &first);
    if (error)
        return error;
    for (uint64_t i = 0; i < n; i++) {
        int flags =
            !!terminated[i] * MC_TERMINATED | !!truncated[i] * MC_TRUNCATED | !!boundary[i] * MC_BOUNDARY;
        mc_writer_head(writer, records + i * bytes, flags);
        /* If an ended row has a boundary row, that one closes the episode instead. */
        if (flags && !(i + 1 < n && boundary[i + 1]))
            writer->age = 0;
    }
    sources[0] = records;
    for (uint64_t k = 1; k < writer->lane.columns; k++)
        sources[k] = frames[k];
    mc_lane_put(&writer->lane, first, n, sources);
    for (uint64_t i = 0; i < n; i++) {
        struct mc_row row;
        memcpy(&row, records + i * bytes, sizeof row);
        if (!boundary[i])
            mc_writer_put_intervals(writer, first + i, row.place & (MC_AGE_LIMIT - 1), sources, i);
    }
    mc_lane_commit(&writer->lane, first, n);
    return (int64_t)first;
}

int64_t mc_writer_add_rows(struct mc_writer *writer, uint64_t n, uint8_t *records, const void *const *frames,
                           const uint8_t *ends, int boundaries) {
    int error = mc_rows_check(writer, n, records, ends, boundaries);
    if (!error)
        error = mc_writer_enter(writer);
    if (error)
        return error;
    int64_t ticket = mc_writer_put_rows(writer, n, records, frames, ends);
    if (ticket >= 0)
        mc_lane_notify(&writer->lane, n);
    mc_writer_leave(writer);
    return ticket;
}

int64_t mc_lane_transitions(const struct mc_lane *lane) {
    for (int attempt = 0; attempt < MC_ATTEMPTS; attempt++) {
        int64_t lo, hi, which = 0;
        uint8_t ok;
        if (mc_lanes_window(lane, 1, &lo, &hi))
            return -EUCLEAN;
        if (lo == hi)
            return 0;
        uint64_t oldest = mc_lane_word(lane, (uint64_t)lo), newest = mc_lane_word(lane, (uint64_t)hi - 1);
        mc_lanes_validate(lane, 1, &which, &lo, &ok);
        if (!ok)
            continue;
        int64_t held = (uint32_t)(mc_transitions_of(1, newest) - mc_row_of(oldest).ordinal);
        return held <= hi - lo ? held : -EUCLEAN;
    }
    return -ESTALE;
}

/* The boundary rows are the difference between the newest row's ticket and its ordinal. */
static int64_t mc_lane_inserted(const struct mc_lane *lane) {
    uint64_t rows, word;
    int error = mc_lane_newest(lane, &rows, &word);
    uint32_t boundaries = (uint32_t)rows - mc_transitions_of(rows, word);
    if (error)
        return error;
    return boundaries <= rows ? (int64_t)(rows - boundaries) : -EUCLEAN;
}

/* The sum of `count` over n lanes. */
static int64_t mc_lanes_sum(const struct mc_lane *lanes, uint64_t n,
                            int64_t (*count)(const struct mc_lane *)) {
    int64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        struct mc_lane lane;
        mc_lanes_nth(lanes, i, &lane);
        int64_t one = count(&lane);
        if (one < 0)
            return one;
        if (sum > INT64_MAX - one)
            return -EUCLEAN;
        sum += one;
    }
    return sum;
}

int64_t mc_lanes_inserted(const struct mc_lane *lanes, uint64_t n) {
    return mc_lanes_sum(lanes, n, mc_lane_inserted);
}

int64_t mc_lanes_transitions(const struct mc_lane *lanes, uint64_t n) {
    return mc_lanes_sum(lanes, n, mc_lane_transitions);
}
