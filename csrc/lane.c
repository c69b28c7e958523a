/* The lane: the one lock-free structure. Protocol and proof obligations: see docs/how-it-works.md. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

static int mc_counters_sane(uint64_t committed, uint64_t reserved, uint64_t capacity) {
    return committed <= reserved && reserved - committed <= capacity && reserved < MC_TICKET_LIMIT;
}

/* In this form because reserved - capacity underflows on a young lane. */
static int mc_ticket_whole(uint64_t ticket, uint64_t capacity, uint64_t reserved) {
    return ticket + capacity >= reserved;
}

/* Others may append more than a lap between the two loads. */
int mc_lane_check(const struct mc_lane *lane) {
    for (int attempt = 0; attempt < MC_ATTEMPTS; attempt++) {
        uint64_t c = mc_load_committed(mc_counters_of(lane));
        uint64_t r = mc_load_reserved(mc_counters_of(lane));
        if (mc_counters_sane(c, r, lane->capacity))
            return 0;
    }
    return -EUCLEAN;
}

int64_t mc_lane_committed(const struct mc_lane *lane) {
    uint64_t c = mc_load_committed(mc_counters_of(lane));
    return c < MC_TICKET_LIMIT ? (int64_t)c : -EUCLEAN;
}

/* Puts the pages of these lanes' counters, and those between, on disk. 0, -errno. */
int mc_lanes_sync(const struct mc_lane *low, const struct mc_lane *high) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uint8_t *begin = low->counters - (uintptr_t)low->counters % page;
    return msync(begin, (size_t)(high->counters + MC_LINE - begin), MS_SYNC) ? -errno : 0;
}

/* A word of the flusher. */
static uint64_t mc_lane_told(const struct mc_lane *lane, int word) {
    return mc_load_word((mc_word *)(void *)lane->promised + word);
}

/* The tickets below it are promised on disk. */
static uint64_t mc_lane_limit(const struct mc_lane *lane) {
    uint64_t promised = mc_lane_told(lane, MC_PROMISED), upheld = mc_load_upheld(mc_counters_of(lane));
    return promised < upheld ? upheld : promised;
}

/* The writer's own promise that tickets below `top` may be overwritten, and again about as many as it is
 * ahead of the watermark, since a pledge costs a write to the disk; in a queue, all for which its reader made
 * room. Killed before `mc_lane_uphold`, it leaves a pledge that is not upheld. */
static void mc_lane_pledge(const struct mc_lane *lane, uint64_t top) {
    struct mc_counters *counters = mc_counters_of(lane);
    uint64_t least = lane->capacity / 4 < MC_LEAST_PLEDGE ? lane->capacity / 4 : MC_LEAST_PLEDGE;
    uint64_t most = lane->capacity / 8 < MC_MOST_PLEDGE ? MC_MOST_PLEDGE : lane->capacity / 8;
    uint64_t ahead = top - mc_lane_told(lane, MC_WATERMARK);
    uint64_t pledged = mc_load_pledged(counters), room = mc_load_room(counters);
    uint64_t limit = top + (ahead < least ? least : ahead > most ? most : ahead);
    if (room) /* out of range only if it is damaged, or the reader came to an earlier row */
        limit = room - top <= lane->capacity ? room : top;
    mc_store_pledged(counters, limit < pledged ? pledged : limit);
}

/* After the pledge is on disk. */
void mc_lane_uphold(const struct mc_lane *lane) {
    mc_store_upheld(mc_counters_of(lane), mc_load_pledged(mc_counters_of(lane)));
}

/* Whether n rows may be appended: 0, -EINVAL, -EUCLEAN, or -EDQUOT if their tickets are withheld. */
static int mc_lane_admits(const struct mc_lane *lane, uint64_t committed, uint64_t reserved, uint64_t n) {
    if (n < 1 || n > lane->capacity)
        return -EINVAL;
    if (committed > reserved || reserved - committed > lane->capacity)
        return -EUCLEAN;
    uint64_t top = reserved < committed + n ? committed + n : reserved;
    return top + lane->withheld < MC_TICKET_LIMIT ? 0 : -EDQUOT;
}

int mc_lane_pledge_next(const struct mc_lane *lane, uint64_t n) {
    const struct mc_counters *counters = mc_counters_of(lane);
    uint64_t c = mc_load_committed(counters), r = mc_load_reserved(counters), room = mc_load_room(counters);
    uint64_t top = c + n < r ? r : c + n;
    int error = mc_lane_admits(lane, c, r, n);
    if (!lane->promised || (error && error != -EDQUOT) || top >= MC_TICKET_LIMIT || (room && room < c + n))
        return 0;
    uint64_t limit = mc_lane_limit(lane);
    if (top <= limit && room <= limit)
        return 0;
    mc_lane_pledge(lane, top);
    return 1;
}

/* For the lane's writer, before it takes tickets below `top` that may not be promised yet. 0, -EUCLEAN if
 * the lane is not durable, -errno of the disk. */
static int mc_lane_extend(struct mc_lane *lane, uint64_t top) {
    if (!lane->promised || top >= MC_TICKET_LIMIT)
        return -EUCLEAN;
    if (mc_lane_limit(lane) < top) {
        mc_lane_pledge(lane, top);
        int error = mc_lanes_sync(lane, lane);
        if (error)
            return error;
        mc_lane_uphold(lane);
    }
    uint64_t limit = mc_lane_limit(lane);
    lane->withheld = limit < MC_TICKET_LIMIT ? MC_TICKET_LIMIT - 1 - limit : 0;
    return 0;
}

/* Apart from the calls that are repeated once more tickets are promised, for these to stay short. */
__attribute__((noinline)) static int mc_lane_next_withheld(struct mc_lane *lane, uint64_t n,
                                                           uint64_t *first) {
    const struct mc_counters *counters = mc_counters_of(lane);
    uint64_t top = mc_load_committed(counters) + n;
    int error = mc_lane_extend(lane, top < mc_load_reserved(counters) ? mc_load_reserved(counters) : top);
    return error ? error : mc_lane_next(lane, n, first);
}

/* A check, without the append, of rows that must first wait for a queue's reader pledges nothing. */
__attribute__((noinline)) static int mc_lane_check_withheld(struct mc_lane *lane, uint64_t n,
                                                            uint64_t *first) {
    uint64_t room = mc_load_room(mc_counters_of(lane));
    return room && room < *first + n ? 0 : mc_lane_next_withheld(lane, n, first);
}

int mc_lane_peek(const struct mc_lane *lane, uint64_t n, uint64_t *first) {
    const struct mc_counters *counters = mc_counters_of(lane);
    *first = mc_load_committed(counters);
    return mc_lane_admits(lane, *first, mc_load_reserved(counters), n);
}

int mc_lane_next(struct mc_lane *lane, uint64_t n, uint64_t *first) {
    int error = mc_lane_peek(lane, n, first);
    return error == -EDQUOT ? mc_lane_check_withheld(lane, n, first) : error;
}

__attribute__((noinline)) static int mc_lane_reserve_withheld(struct mc_lane *lane, uint64_t n,
                                                              uint64_t *first) {
    int error = mc_lane_next_withheld(lane, n, first);
    return error ? error : mc_lane_reserve(lane, n, first);
}

uint64_t mc_lane_word(const struct mc_lane *lane, uint64_t ticket) {
    const struct mc_column *column = &lane->column[0];
    uint64_t word;
    mc_copy_out(&word, column->base + ticket % lane->capacity * column->stride, sizeof word);
    return word;
}

/* Apart, since it is rare: killed before its commit, such an append leaves no whole row. */
__attribute__((noinline)) static int mc_lane_reserve_whole(struct mc_lane *lane, uint64_t c,
                                                           uint64_t *first) {
    struct mc_counters *counters = mc_counters_of(lane);
    if (c > 0) {
        mc_store_kept(counters, mc_lane_word(lane, c - 1), c);
        mc_fence_write(); /* a successor that finds the reservation finds what was kept */
    }
    mc_store_reserved(counters, c + lane->capacity);
    mc_fence_write_streaming();
    *first = c;
    return 0;
}

int mc_lane_reserve(struct mc_lane *lane, uint64_t n, uint64_t *first) {
    struct mc_counters *counters = mc_counters_of(lane);
    uint64_t c = mc_load_committed(counters);
    uint64_t r = mc_load_reserved(counters);
    uint64_t bytes = 0;
    int error = mc_lane_admits(lane, c, r, n);
    if (error == -EDQUOT)
        return mc_lane_reserve_withheld(lane, n, first);
    if (error)
        return error;
    /* A predecessor killed inside a longer append may have reserved more. Lowering reserved would let a
     * reader accept a row that the predecessor had begun to overwrite. */
    if (r < c + n) {
        if (n == lane->capacity)
            return mc_lane_reserve_whole(lane, c, first);
        mc_store_reserved(counters, c + n);
    }
    for (uint64_t k = 0; k < lane->columns; k++)
        bytes += n * lane->column[k].size;
    if (bytes < MC_STREAMING_BYTES)
        mc_fence_write();
    else
        mc_fence_write_streaming();
    *first = c;
    return 0;
}

static void mc_column_get(const struct mc_column *column, uint64_t row, uint64_t n, uint8_t *dest) {
    const uint8_t *from = column->base + row * column->stride;
    if (column->size == column->stride) {
        mc_copy_out(dest, from, n * column->size);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        mc_copy_out(dest + i * column->size, from + i * column->stride, column->size);
}

static void mc_column_put(const struct mc_column *column, uint64_t row, uint64_t n, const uint8_t *source,
                          uint64_t pitch) {
    uint8_t *to = column->base + row * column->stride;
    if (pitch == column->stride) {
        mc_copy_in(to, source, n * pitch);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        mc_copy_in(to + i * column->stride, source + i * pitch, column->size);
}

void mc_lane_put(struct mc_lane *lane, uint64_t ticket, uint64_t n, const void *const *sources) {
    uint64_t row = ticket % lane->capacity;
    uint64_t head = lane->capacity - row < n ? lane->capacity - row : n;
    for (uint64_t k = 0; k < lane->columns; k++) {
        const struct mc_column *column = &lane->column[k];
        if (column->every > 1)
            continue;
        const uint8_t *source = sources[k];
        uint64_t pitch = k == 0 ? column->stride : column->size;
        mc_column_put(column, row, head, source, pitch);
        if (head < n)
            mc_column_put(column, 0, n - head, source + head * pitch, pitch);
    }
}

void mc_lane_put_interval(struct mc_lane *lane, uint64_t column, uint64_t ticket, const void *source) {
    const struct mc_column *c = &lane->column[column];
    mc_copy_in(c->base + ticket % lane->capacity / c->every * c->stride, source, c->size);
}

void mc_lane_commit(struct mc_lane *lane, uint64_t first, uint64_t n) {
    mc_store_committed(mc_counters_of(lane), first + n);
}

void mc_lane_notify(const struct mc_lane *lane, uint64_t n) {
    mc_event_notify(lane->event, n < UINT32_MAX ? (uint32_t)n : UINT32_MAX);
}

int mc_lane_append(struct mc_lane *lane, uint64_t n, const void *const *sources) {
    uint64_t first;
    int error = mc_lane_reserve(lane, n, &first);
    if (error)
        return error;
    mc_lane_put(lane, first, n, sources);
    mc_lane_commit(lane, first, n);
    mc_lane_notify(lane, n);
    return 0;
}

int64_t mc_lane_begin(struct mc_lane *lane) {
    uint64_t ticket;
    int error = mc_lane_reserve(lane, 1, &ticket);
    mc_fence_write_streaming(); /* of rows of any size: a device's writes may pass a release fence too */
    return error ? error : (int64_t)ticket;
}

void mc_lane_finish(struct mc_lane *lane, int64_t ticket, const void *source, uint64_t from) {
    const struct mc_column *column = &lane->column[0];
    uint8_t *row = column->base + (uint64_t)ticket % lane->capacity * column->stride;
    mc_copy_in(row + from, (const uint8_t *)source + from, column->size - from);
    mc_lane_commit(lane, (uint64_t)ticket, 1);
    mc_lane_notify(lane, 1);
}

int mc_lane_read(const struct mc_lane *lane, uint64_t ticket, uint64_t n, void *const *dests) {
    const struct mc_counters *counters = mc_counters_of(lane);
    uint64_t c = mc_load_committed(counters);
    if (n < 1 || n > lane->capacity || ticket >= MC_TICKET_LIMIT)
        return -EINVAL;
    if (ticket + n > c)
        return -EAGAIN;
    if (!mc_ticket_whole(ticket, lane->capacity, mc_load_reserved(counters)))
        return -ESTALE;
    uint64_t row = ticket % lane->capacity;
    uint64_t head = lane->capacity - row < n ? lane->capacity - row : n;
    for (uint64_t k = 0; k < lane->columns; k++) {
        const struct mc_column *column = &lane->column[k];
        uint8_t *to = dests[k];
        if (!to)
            continue;
        mc_column_get(column, row, head, to);
        if (head < n)
            mc_column_get(column, 0, n - head, to + head * column->size);
    }
    mc_fence_read();
    return mc_ticket_whole(ticket, lane->capacity, mc_load_reserved(counters)) ? 0 : -ESTALE;
}

int64_t mc_lane_read_newest(const struct mc_lane *lane, void *dest) {
    uint64_t c = mc_load_committed(mc_counters_of(lane));
    void *dests[MC_MAX_COLUMNS] = {dest};
    if (c == 0)
        return 0;
    int error = mc_lane_read(lane, c - 1, 1, dests);
    return error ? error : (int64_t)c;
}

/* One look of mc_lane_newest: -ESTALE if the writer went on meanwhile. */
static int mc_lane_look(const struct mc_lane *lane, uint64_t *committed, uint64_t *word) {
    const struct mc_counters *counters = mc_counters_of(lane);
    uint64_t c = *committed = mc_load_committed(counters);
    *word = 0;
    if (c >= MC_TICKET_LIMIT)
        return -EUCLEAN;
    if (c == 0)
        return 0;
    if (mc_ticket_whole(c - 1, lane->capacity, mc_load_reserved(counters))) {
        *word = mc_lane_word(lane, c - 1);
        mc_fence_read();
        return mc_ticket_whole(c - 1, lane->capacity, mc_load_reserved(counters)) ? 0 : -ESTALE;
    }
    if (mc_load_kept_of(counters) != c)
        return -ESTALE;
    *word = mc_load_kept(counters);
    mc_fence_read(); /* what a later append keeps comes with a later commit */
    return mc_load_committed(counters) == c ? 0 : -ESTALE;
}

int mc_lane_newest(const struct mc_lane *lane, uint64_t *committed, uint64_t *word) {
    int error = -ESTALE;
    for (int attempt = 0; attempt < MC_ATTEMPTS && error == -ESTALE; attempt++)
        error = mc_lane_look(lane, committed, word);
    return error;
}

int mc_lanes_newest(const struct mc_lane *lanes, uint64_t n, int64_t *committed, int64_t *words) {
    int error = 0;
    for (uint64_t i = 0; i < n && !error; i++) {
        struct mc_lane lane;
        mc_lanes_nth(lanes, i, &lane);
        error = mc_lane_newest(&lane, (uint64_t *)&committed[i], (uint64_t *)&words[i]);
    }
    return error;
}

void mc_lanes_nth(const struct mc_lane *lanes, uint64_t i, struct mc_lane *lane) {
    *lane = *lanes;
    lane->counters += i * MC_LINE;
    if (lane->promised)
        lane->promised += i * sizeof(mc_word[2]);
    for (uint64_t k = 0; k < lane->columns; k++)
        lane->column[k].base += i * (lane->capacity / lane->column[k].every) * lane->column[k].stride;
}

static const struct mc_counters *mc_counters_nth(const struct mc_lane *lanes, uint64_t i) {
    return (const struct mc_counters *)(const void *)(lanes->counters + i * MC_LINE);
}

int mc_lanes_window(const struct mc_lane *lanes, uint64_t n, int64_t *lo, int64_t *hi) {
    for (uint64_t i = 0; i < n; i++) {
        const struct mc_counters *counters = mc_counters_nth(lanes, i);
        uint64_t c = mc_load_committed(counters);
        uint64_t r = mc_load_reserved(counters);
        if (c >= MC_TICKET_LIMIT || r >= MC_TICKET_LIMIT)
            return -EUCLEAN;
        /* If a writer commits between the two loads, r is well above c: rows it overwrote are excluded. */
        uint64_t top = c > r ? c : r;
        uint64_t low = top > lanes->capacity ? top - lanes->capacity : 0;
        lo[i] = (int64_t)(low < c ? low : c);
        hi[i] = (int64_t)c;
    }
    return 0;
}

int mc_windows_raise(uint64_t n, const int64_t *floor, const int64_t *hi, int64_t *lo) {
    for (uint64_t i = 0; i < n; i++) {
        if (floor[i] > hi[i])
            return -EUCLEAN;
        lo[i] = lo[i] > floor[i] ? lo[i] : floor[i];
    }
    return 0;
}

int64_t mc_lanes_validate(const struct mc_lane *lanes, uint64_t n, const int64_t *lane, const int64_t *lowest,
                          uint8_t *ok) {
    int64_t lapped = 0;
    mc_fence_read();
    for (uint64_t i = 0; i < n; i++) {
        uint64_t reserved = mc_load_reserved(mc_counters_nth(lanes, (uint64_t)lane[i]));
        ok[i] = (uint8_t)mc_ticket_whole((uint64_t)lowest[i], lanes->capacity, reserved);
        lapped += !ok[i];
    }
    return lapped;
}
