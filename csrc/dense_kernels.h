/* The kernels, once for each level of processors: dense.c includes this text with LEVEL(name), the name at
 * that level; KERNEL, the function attribute; LANES, the floats of a vector; and ROWS times VECTORS, the
 * block in registers. */

typedef float LEVEL(vec) __attribute__((vector_size(4 * LANES)));
typedef float LEVEL(loose) __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* in memory */
typedef int32_t LEVEL(ints) __attribute__((vector_size(4 * LANES)));
#define vec LEVEL(vec)
#define loose LEVEL(loose)
#define ints LEVEL(ints)
#define INLINE KERNEL static inline __attribute__((always_inline))
#define EACH(k, count) _Pragma("GCC unroll 8") for (int k = 0; k < count; k++)

INLINE vec LEVEL(load)(const float *x) { return *(const loose *)x; }
INLINE vec LEVEL(all)(float x) { return x - (vec){0}; }
/* Where the mask is -1 the first, where it is 0 the second. */
INLINE vec LEVEL(select)(ints mask, vec first, vec second) {
    return (vec)((mask & (ints)first) | (~mask & (ints)second));
}

/* exp(x) of x in [0, 20] or NaN: a power of 2, times a polynomial on [-log(2)/2, log(2)/2]. */
INLINE vec LEVEL(exp)(vec x) {
    vec shifted = x * 1.44269504f + 12582912.0f; /* 1.5 2^23: the sum's low bits are the rounded power */
    vec power = shifted - 12582912.0f;
    vec r = x - power * 0.693145752f - power * 1.42860677e-6f;
    vec q = (((0.00139015249f * r + 0.00836374052f) * r + 0.0416668616f) * r + 0.166665733f) * r + 0.5f;
    return (r * r * q + r + 1.0f) * (vec)(((ints)shifted + 127) << 23);
}

INLINE vec LEVEL(tanh)(vec x) {
    vec size = (vec)((ints)x & 0x7fffffff), square = x * x;
    vec t = (((-0.00604539085f * square + 0.0209615119f) * square - 0.0538433082f) * square + 0.133327186f) *
                square -
            0.333333284f;
    vec near = x * square * t + x;
    vec twice = LEVEL(select)(size > 10.0f, LEVEL(all)(20.0f), 2.0f * size); /* NaN stays */
    vec far = 1.0f - 2.0f / (LEVEL(exp)(twice) + 1.0f);
    far = (vec)((ints)far | ((ints)x & (int32_t)0x80000000));
    return LEVEL(select)(size < 0.625f, near, far);
}

/* What a sum becomes: with a slope, times the slope of that activation; otherwise at least 0 after ReLU. */
INLINE vec LEVEL(finish)(vec y, const struct mc_product *p, int64_t r, int64_t c, const int slope) {
    if (slope == MC_LINEAR) {
        float least = p->activation == MC_RELU ? 0.0f : -INFINITY;
        return LEVEL(select)(y <= least, LEVEL(all)(least), y); /* NaN stays */
    }
    vec h = LEVEL(load)(p->slope_of + r * p->slope_row + c);
    return slope == MC_RELU ? (vec)((ints)y & (h > 0.0f)) : y * (1.0f - h * h);
}

/* Lane l of the result is x[from[l]]. */
INLINE vec LEVEL(pick)(vec x, ints from) {
#if defined(__clang__)
    vec picked;
    for (int k = 0; k < LANES; k++)
        picked[k] = x[from[k]];
    return picked;
#else
    return __builtin_shuffle(x, from);
#endif
}

/* Adds the products of whole vectors of a's rows to sums of at most `width` columns; returns how many numbers
 * those are. A vector takes the columns of LANES / width numbers at once, whose sums add up at the end. */
INLINE int64_t LEVEL(few)(const struct mc_product *p, const float *a, const float *b, const int rows,
                          const int width, vec sum[8][VECTORS]) {
    const int group = LANES / width;
    const int64_t whole = p->inner / LANES * LANES, a_row = p->a_row, b_row = p->b_row;
    ints lane;
    vec part[8], numbers[8];
    for (int k = 0; k < LANES; k++)
        lane[k] = k;
    EACH (k, rows)
        part[k] = (vec){0};
    for (int64_t i = 0; i < whole; i += LANES) {
        EACH (k, rows)
            numbers[k] = LEVEL(load)(a + k * a_row + i);
        EACH (s, width) {
            vec columns = LEVEL(load)(b);
            for (int g = 1; g < group; g++)
                columns = LEVEL(select)(lane / width == g, LEVEL(load)(b + g * (b_row - width)), columns);
            EACH (k, rows)
                part[k] += LEVEL(pick)(numbers[k], lane / width + s * group) * columns;
            b += group * b_row;
        }
    }
    for (int half = LANES / 2; half >= width; half /= 2)
        EACH (k, rows)
            part[k] += LEVEL(pick)(part[k], lane ^ half);
    EACH (k, rows)
        sum[k][0] += part[k];
    return whole;
}

/* Some rows and vectors of y; their numbers are constants of each call, so that the sums stay in registers.
 */
INLINE void LEVEL(block)(const struct mc_product *p, int64_t r, int64_t c, const int rows, const int vectors,
                         const int slope, const int width) {
    vec sum[8][VECTORS];
    EACH (k, rows)
        EACH (v, vectors)
            sum[k][v] = p->bias ? LEVEL(load)(p->bias + c + v * LANES) : (vec){0};
    const float *a = p->a + r * p->a_row, *b = p->b + c;
    const int64_t inner = p->inner, a_row = p->a_row, a_inner = p->a_inner, b_row = p->b_row;
    for (int64_t i = width < LANES ? LEVEL(few)(p, a, b, rows, width, sum) : 0; i < inner; i++)
        EACH (k, rows)
            EACH (v, vectors)
                sum[k][v] += a[k * a_row + i * a_inner] * LEVEL(load)(b + i * b_row + v * LANES);
    EACH (k, rows)
        EACH (v, vectors)
            sum[k][v] = LEVEL(finish)(sum[k][v], p, r + k, c + v * LANES, slope);
    float *y = p->y + r * p->y_row + c;
    const int64_t columns = p->columns - c, y_row = p->y_row;
    if (p->whole || columns >= vectors * LANES) {
        EACH (k, rows)
            EACH (v, vectors)
                *(loose *)(y + k * y_row + v * LANES) = sum[k][v];
    } else {
        vec line[VECTORS];
        EACH (k, rows) {
            EACH (v, vectors)
                line[v] = sum[k][v];
            memcpy(y + k * y_row, line, (size_t)columns * sizeof *y);
        }
    }
}

/* All rows of some vectors, `most` rows at once: enough sums that none waits for another. */
INLINE void LEVEL(rows)(const struct mc_product *p, int64_t c, const int most, const int vectors,
                        const int slope, const int width) {
    int64_t r = 0;
    for (; r + most <= p->rows; r += most)
        LEVEL(block)(p, r, c, most, vectors, slope, width);
    for (; r + 2 <= p->rows; r += 2)
        LEVEL(block)(p, r, c, 2, vectors, slope, width);
    if (r < p->rows)
        LEVEL(block)(p, r, c, 1, vectors, slope, width);
}

INLINE void LEVEL(columns)(const struct mc_product *p, const int slope) {
    /* in shorter vectors picking lanes takes as long as it saves */
    const int few = slope == MC_LINEAR && LANES > 8 && p->a_inner == 1 ? p->columns : LANES;
    int64_t c = 0;
    for (; c + (VECTORS - 1) * LANES < p->columns; c += VECTORS * LANES)
        LEVEL(rows)(p, c, ROWS, VECTORS, slope, LANES);
    for (; c < p->columns; c += LANES)
        if (few <= 4)
            LEVEL(rows)(p, c, 8, 1, slope, 4);
        else if (few <= 8)
            LEVEL(rows)(p, c, 8, 1, slope, 8);
        else
            LEVEL(rows)(p, c, 8, 1, slope, LANES);
}

KERNEL static void LEVEL(multiply)(const struct mc_product *p) {
    if (p->slope_of && p->activation == MC_RELU)
        LEVEL(columns)(p, MC_RELU);
    else if (p->slope_of && p->activation == MC_TANH)
        LEVEL(columns)(p, MC_TANH);
    else
        LEVEL(columns)(p, MC_LINEAR);
    for (int64_t r = 0; !p->slope_of && p->activation == MC_TANH && r < p->rows; r++)
        for (float *y = p->y + r * p->y_row, *end = y + p->columns; y < end; y += LANES)
            *(loose *)y = LEVEL(tanh)(LEVEL(load)(y));
}

/* y[c]: the sum over r of x[r, c], as four sums, so that none waits for another. */
KERNEL static void LEVEL(add_rows)(int64_t rows, int64_t columns, const float *x, int64_t x_row, float *y) {
    for (int64_t c = 0; c < columns; c += LANES) {
        vec sum[4] = {{0}};
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4)
            EACH (k, 4)
                sum[k] += LEVEL(load)(x + (r + k) * x_row + c);
        for (; r < rows; r++)
            sum[0] += LEVEL(load)(x + r * x_row + c);
        sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        memcpy(y + c, sum, (size_t)(columns - c < LANES ? columns - c : LANES) * sizeof *y);
    }
}

KERNEL static void LEVEL(scale)(int64_t n, const float *a, const float *b, int adds, float *restrict y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] * b[i] + (adds ? y[i] : 0.0f);
}

KERNEL static void LEVEL(descend)(const struct mc_tensor *tensor, const struct mc_descent *descent,
                                  float rate, float root, float scale) {
    float *restrict weight = tensor->weight, *restrict mean = tensor->mean, *restrict square = tensor->square;
    const float *restrict gradient = tensor->gradient;
    float *restrict target = tensor->target;
    const float first = (float)descent->beta1, second = (float)descent->beta2,
                epsilon = (float)descent->epsilon, share = (float)descent->share;
    for (int64_t from = 0, end; from < tensor->size; from = end) { /* targets while their weights are near */
        end = from + 1024 < tensor->size ? from + 1024 : tensor->size;
        for (int64_t i = from; i < end; i++) {
            float g = gradient[i] * scale;
            mean[i] = first * mean[i] + (1.0f - first) * g;
            square[i] = second * square[i] + (1.0f - second) * g * g;
            weight[i] -= rate * mean[i] / (sqrtf(square[i]) * root + epsilon);
        }
        for (int64_t i = from; share > 0.0f && i < end; i++)
            target[i] = share < 0.5f ? target[i] + share * (weight[i] - target[i])
                                     : weight[i] - (weight[i] - target[i]) * (1.0f - share);
    }
}

/* The sum of squares: of 64 sums in turns, whatever LANES is, and of each 4,096 numbers apart. */
KERNEL static double LEVEL(squares)(const float *x, int64_t n) {
    double total = 0.0;
    while (n > 0) {
        vec sum[64 / LANES] = {{0}};
        int64_t i = 0, part = n < 4096 ? n : 4096;
        for (; i + 64 <= part; i += 64)
            for (int v = 0; v < 64 / LANES; v++)
                sum[v] += LEVEL(load)(x + i + v * LANES) * LEVEL(load)(x + i + v * LANES);
        for (int v = 16 / LANES; v < 64 / LANES; v++)
            sum[v % (16 / LANES)] += sum[v];
        for (int k = 0; k < 16; k++)
            total += (double)sum[k / LANES][k % LANES];
        for (; i < part; i++)
            total += (double)(x[i] * x[i]);
        x += part;
        n -= part;
    }
    return total;
}

/* cos(pi j t) for j from 0 to count - 1: sin(pi (1/2 - |x|)) by a polynomial, where x is j t to the nearest
 * even. */
KERNEL static void LEVEL(cosines)(int64_t rows, int64_t count, const float *fractions, float *y) {
    vec step;
    for (int k = 0; k < LANES; k++)
        step[k] = (float)k;
    for (int64_t r = 0; r < rows; r++, y += mc_padded(count))
        for (int64_t j = 0; j < count; j += LANES) {
            vec x = (step + (float)j) * fractions[r];
            vec halves = x * 0.5f + 12582912.0f;
            x -= 2.0f * (halves - 12582912.0f);
            vec s = 0.5f - (vec)((ints)x & 0x7fffffff), q = s * s;
            vec p =
                (((0.0775603876f * q - 0.598242104f) * q + 2.55006981f) * q - 5.16770983f) * q + 3.14159274f;
            *(loose *)(y + j) = s * p;
        }
}

static const struct mc_dense LEVEL(kernels) = {LEVEL(multiply), LEVEL(add_rows), LEVEL(scale),
                                               LEVEL(descend),  LEVEL(squares),  LEVEL(cosines)};

#undef vec
#undef loose
#undef ints
#undef INLINE
#undef EACH
#undef LEVEL
#undef KERNEL
#undef LANES
#undef VECTORS
#undef ROWS
