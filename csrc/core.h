/* Declarations shared by the core's own files. */
#ifndef MC_CORE_H
#define MC_CORE_H

#include <assert.h>
#include <stddef.h>

#include "api.h"
#include "atomics.h"

static_assert(sizeof(struct mc_row) == 16, "the head of a record is 16 bytes");
static_assert(offsetof(struct mc_row, place) == 4 && offsetof(struct mc_row, policy_version) == 8 &&
                  offsetof(struct mc_row, reward) == 12,
              "the sampling kernels read these offsets");
static_assert(sizeof(struct mc_counters) <= MC_LINE && sizeof(struct mc_event) <= MC_LINE, "one line each");

/* Counters never approach 2^63, from which tickets would not fit the signed numbers of a batch. */
#define MC_TICKET_LIMIT (UINT64_C(1) << 62)

/* Copies of at least this many bytes may use non-temporal stores: glibc's x86_non_temporal_threshold is at
 * least 0x4040, and has this least value where a hypervisor hides the sizes of the caches. */
#define MC_STREAMING_BYTES ((uint64_t)16 * 1024)

enum { MC_ATTEMPTS = 1000 }; /* to look at a lane, if each attempt is lapped */

/* A writer pledges at least the lesser of a quarter of the lane and MC_LEAST_PLEDGE rows, and at most the
 * greater of an eighth and MC_MOST_PLEDGE. */
#define MC_LEAST_PLEDGE ((uint64_t)1024)
#define MC_MOST_PLEDGE ((uint64_t)65536)

static inline struct mc_counters *mc_counters_of(const struct mc_lane *lane) {
    return (struct mc_counters *)(void *)lane->counters;
}

/* Copies into and out of rows that the other side may be reading or writing at the same time. */
void mc_copy_in(uint8_t *row, const void *source, uint64_t size);
void mc_copy_out(void *dest, const uint8_t *row, uint64_t size);

/* mc_lanes_newest of one lane. */
int mc_lane_newest(const struct mc_lane *lane, uint64_t *committed, uint64_t *word);
/* The first word of a row; whole only if the lane still holds the row after the call. */
uint64_t mc_lane_word(const struct mc_lane *lane, uint64_t ticket);

/* Whether n rows may be appended, without a write: the ticket of the first, or the error of mc_lane_reserve.
 */
int mc_lane_next(struct mc_lane *lane, uint64_t n, uint64_t *first);

/* The same, but with -EDQUOT where tickets are withheld; and what a vector does then to pledge them: each
 * lane stores its pledge for n more rows, or returns 0 if it needs none, before one sync and the upholding.
 */
int mc_lane_peek(const struct mc_lane *lane, uint64_t n, uint64_t *first);
int mc_lane_pledge_next(const struct mc_lane *lane, uint64_t n);
int mc_lanes_sync(const struct mc_lane *low, const struct mc_lane *high);
void mc_lane_uphold(const struct mc_lane *lane);

/* An append in four steps, for rows that come from several places. */
int mc_lane_reserve(struct mc_lane *lane, uint64_t n, uint64_t *first);
void mc_lane_put(struct mc_lane *lane, uint64_t ticket, uint64_t n, const void *const *sources);
/* Between reserve and commit: writes the row of a column at intervals that belongs to this ticket. */
void mc_lane_put_interval(struct mc_lane *lane, uint64_t column, uint64_t ticket, const void *source);
void mc_lane_commit(struct mc_lane *lane, uint64_t first, uint64_t n);
/* After commits of n rows together, to any lanes of the segment. */
void mc_lane_notify(const struct mc_lane *lane, uint64_t n);

enum { MC_AGE_LIMIT = 1 << 24, MC_FLAGS_SHIFT = 24 };

static inline int mc_row_flags(const struct mc_row *row) { return (int)(row->place >> MC_FLAGS_SHIFT); }
static inline int mc_row_is_boundary(const struct mc_row *row) { return !!(mc_row_flags(row) & MC_BOUNDARY); }
static inline uint32_t mc_row_age(const struct mc_row *row) { return row->place & (MC_AGE_LIMIT - 1); }
/* The age of the row after one of this age, in the same episode. */
uint32_t mc_age_after(const struct mc_lane *lane, uint32_t age);
/* The transitions among `rows` rows of a lane, modulo 2^32, by the first word of the newest. */
uint32_t mc_transitions_of(uint64_t rows, uint64_t word);

/* Parts of mc_writer_add, for a writer that holds its lane. */
int mc_reward_finite(const uint8_t *record);
/* Appends the staged transition without a wake-up: its ticket, or an error of mc_lane_reserve. */
int64_t mc_writer_put(struct mc_writer *writer, int flags);
static inline uint64_t mc_rows_of(int flags) { return flags & MC_BOUNDARY ? 2 : 1; }

#endif
