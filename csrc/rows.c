/* Rows on their way between the lanes of two segments: read as spans into a message, appended from there.
 *
 *   a span in a message, each column padded to 8 bytes; a column at intervals has its rows' entries in order,
 *   and room for the most entries that so many rows can have:
 *   +--------------+---------------+-----+--------------------+
 *   | rows' records| rows' column 1| ... | entries of column k|
 *   +--------------+---------------+-----+--------------------+
 */
#include <errno.h>
#include <string.h>

#include "core.h"

static uint64_t mc_column_entries(const struct mc_column *column, uint64_t rows) {
    return (rows + column->every - 1) / column->every;
}

static uint64_t mc_column_bytes(const struct mc_column *column, uint64_t rows) {
    return (mc_column_entries(column, rows) * column->size + 7) / 8 * 8;
}

/* Whether the row has an entry in the column. */
static int mc_entry_due(const struct mc_column *column, uint32_t age) {
    return column->every > 1 && age > 0 && age % column->every == 0;
}

static uint32_t mc_record_age(const struct mc_lane *lane, const uint8_t *records, uint64_t i) {
    struct mc_row row;
    memcpy(&row, records + i * lane->column[0].size, sizeof row);
    return mc_row_age(&row);
}

int64_t mc_spans_place(const struct mc_lane *lanes, uint64_t n, const struct mc_span *spans, uint64_t room,
                       int64_t *offsets) {
    uint64_t at = 0;
    for (uint64_t i = 0; i < n; i++) {
        offsets[i] = (int64_t)at;
        if (spans[i].rows < 0 || (uint64_t)spans[i].rows > room)
            return -EINVAL;
        for (uint64_t k = 0; k < lanes->columns; k++) {
            const struct mc_column *column = &lanes->column[k];
            if (mc_column_entries(column, (uint64_t)spans[i].rows) > (room - at) / column->size)
                return -EINVAL;
            uint64_t bytes = mc_column_bytes(column, (uint64_t)spans[i].rows);
            if (bytes > room - at)
                return -EINVAL;
            at += bytes;
        }
    }
    return (int64_t)at;
}

/* Of a span whose records were copied, the entries of columns at intervals. */
static void mc_span_get_entries(const struct mc_lane *lane, const struct mc_span *span, uint8_t *dest) {
    uint64_t rows = (uint64_t)span->rows;
    uint8_t *at = dest;
    for (uint64_t k = 0; k < lane->columns; at += mc_column_bytes(&lane->column[k++], rows)) {
        const struct mc_column *column = &lane->column[k];
        uint64_t entry = 0, entries = column->every > 1 ? mc_column_entries(column, rows) : 0;
        for (uint64_t i = 0; i < rows && entry < entries; i++) {
            uint64_t row = ((uint64_t)span->first + i) % lane->capacity / column->every;
            if (mc_entry_due(column, mc_record_age(lane, dest, i)))
                mc_copy_out(at + entry++ * column->size, column->base + row * column->stride, column->size);
        }
    }
}

static int mc_span_read(const struct mc_lane *lane, const struct mc_span *span, uint8_t *dest) {
    void *dests[MC_MAX_COLUMNS];
    uint8_t *at = dest, ok;
    uint64_t every = 1;
    int64_t which = 0;
    for (uint64_t k = 0; k < lane->columns; k++) {
        const struct mc_column *column = &lane->column[k];
        dests[k] = column->every > 1 ? NULL : at;
        at += mc_column_bytes(column, (uint64_t)span->rows);
        every = column->every > every ? column->every : every;
    }
    int error = mc_lane_read(lane, (uint64_t)span->first, (uint64_t)span->rows, dests);
    if (error)
        return error;
    mc_span_get_entries(lane, span, dest);
    int64_t lowest = span->first - span->first % (int64_t)every;
    return mc_lanes_validate(lane, 1, &which, &lowest, &ok) ? -ESTALE : 0;
}

int64_t mc_spans_read(const struct mc_lane *lanes, uint64_t n, struct mc_span *spans, uint8_t *dest) {
    uint8_t *at = dest;
    for (uint64_t i = 0; i < n; i++) {
        struct mc_lane lane;
        mc_lanes_nth(lanes, (uint64_t)spans[i].lane, &lane);
        int error = mc_span_read(&lane, &spans[i], at);
        if (error && error != -ESTALE)
            return error;
        if (error)
            spans[i].rows = 0;
        for (uint64_t k = 0; k < lane.columns; k++)
            at += mc_column_bytes(&lane.column[k], (uint64_t)spans[i].rows);
    }
    return at - dest;
}

/* Writes the heads of the part's rows over their copies. Ages and ordinals count on from the lane's newest
 * row, which has the first word `newest`, since rows of the source may be missing before these. */
static void mc_part_put_heads(struct mc_lane *lane, const struct mc_part *part, const uint8_t *span,
                              uint64_t first, uint64_t newest) {
    const struct mc_column *records = &lane->column[0];
    struct mc_row row = {0};
    memcpy(&row, &newest, sizeof newest);
    uint32_t age = mc_row_age(&row), ordinal = mc_transitions_of(first, newest);
    for (uint64_t i = 0; i < (uint64_t)part->take; i++) {
        memcpy(&row, span + ((uint64_t)part->skip + i) * records->size, sizeof row);
        int begins = mc_row_age(&row) == 0 || (i == 0 && part->seam);
        age = begins ? 0 : mc_age_after(lane, age);
        row.place = age | (uint32_t)mc_row_flags(&row) << MC_FLAGS_SHIFT;
        row.ordinal = ordinal;
        ordinal += !mc_row_is_boundary(&row);
        mc_copy_in(records->base + (first + i) % lane->capacity * records->stride, &row, sizeof row);
    }
}

/* The same for the rows' entries of columns at intervals; where there are any, a source's episodes are never
 * cut before a row that has one. */
static void mc_part_put_entries(struct mc_lane *lane, const struct mc_part *part, const uint8_t *span,
                                uint64_t first) {
    const uint8_t *at = span;
    uint64_t skip = (uint64_t)part->skip, rows = (uint64_t)part->rows;
    for (uint64_t k = 0; k < lane->columns; at += mc_column_bytes(&lane->column[k++], rows)) {
        const struct mc_column *column = &lane->column[k];
        uint64_t entry = 0, entries = column->every > 1 ? mc_column_entries(column, rows) : 0;
        for (uint64_t i = 0; i < skip + (uint64_t)part->take && entry < entries; i++) {
            if (!mc_entry_due(column, mc_record_age(lane, span, i)))
                continue;
            if (i >= skip)
                mc_lane_put_interval(lane, k, first + i - skip, at + entry * column->size);
            entry++;
        }
    }
}

static int mc_part_append(struct mc_lane *lane, const struct mc_part *part, const uint8_t *source) {
    const uint8_t *span = source + part->offset, *at = span;
    const void *sources[MC_MAX_COLUMNS];
    uint64_t first, newest;
    int error = mc_lane_newest(lane, &first, &newest);
    if (!error)
        error = mc_lane_reserve(lane, (uint64_t)part->take, &first);
    if (error)
        return error == -ESTALE ? -EUCLEAN : error;
    for (uint64_t k = 0; k < lane->columns; k++) {
        sources[k] = at + (uint64_t)part->skip * lane->column[k].size;
        at += mc_column_bytes(&lane->column[k], (uint64_t)part->rows);
    }
    mc_lane_put(lane, first, (uint64_t)part->take, sources);
    mc_part_put_heads(lane, part, span, first, newest);
    mc_part_put_entries(lane, part, span, first);
    mc_lane_commit(lane, first, (uint64_t)part->take);
    return 0;
}

int mc_parts_append(const struct mc_lane *lanes, uint64_t n, const struct mc_part *parts,
                    const uint8_t *source) {
    uint64_t rows = 0;
    int error = 0;
    for (uint64_t i = 0; i < n && !error; i++) {
        struct mc_lane lane;
        mc_lanes_nth(lanes, (uint64_t)parts[i].lane, &lane);
        error = mc_part_append(&lane, &parts[i], source);
        rows += error ? 0 : (uint64_t)parts[i].take;
    }
    if (rows)
        mc_lane_notify(lanes, rows);
    return error;
}
