#!/usr/bin/env perl
# mutations_kernels.t - tests the tests: breaks one line of a real kernel in a scratch copy and demands that the grid notices.
#
#     make mutations
#
# Each mutation is [stage, variant, file, what the line says, what it shall say, the mistake]. A mutation whose line is no longer
# in the file fails, so that this list cannot rot. Only copies of the tree are ever changed.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use List::Util qw(any);
use Scratch;

my ($naive, $tiled, $fma, $mma) = ('00_naive/naive.cu', '01_tiled/tiled.cuh', '01_tiled/fma.cu', '01_tiled/mma.cu');
my ($online, $fa1, $epilogue) = ('02_online_softmax/online.cu', '03_fa1/fa1.cu', '04_fa2/epilogue.cu');
my ($online_fma, $fa1_fma) = ('02_online_softmax/fma.cu', '03_fa1/fma.cu');
my ($loop_swap, $split_q, $tuned) = ('04_fa2/loop_swap.cu', '04_fa2/split_q.cu', '04_fa2/tuned.cu');
my ($one_block, $split_k, $equal_shares, $decode, $mma_rows, $fma_rows) =
    map { "07_flash_decoding/$_" } 'one_block.cu', 'split_k.cu', 'equal_shares.cu', 'decode.cuh', 'mma_rows.cuh', 'fma_rows.cuh';
my $problem = 'common/problem.h';
my ($naive_backward, $backward, $key_half, $two_pass, $atomic) =
    map { "05_fa2_backward/$_" } 'naive_backward.cu', 'backward.cuh', 'key_half.cuh', 'two_pass.cu', 'atomic.cu';
my ($fa3, $fa3_wgmma, $fa3_specialised, $fa3_overlapped) =
    map { "08_fa3/$_" } 'fa3.cuh', 'wgmma.cu', 'specialised.cu', 'overlapped.cu';
my ($fp8_mma, $fp8_wgmma, $quantise, $rotate, $row_tile, $smooth, $transpose) =
    map { "06_fp8/$_" } 'mma.cu', 'wgmma.cu', 'quantise.cu', 'rotate.cuh', 'row_tile.cuh', 'smooth.cuh', 'transpose.cuh';
my $warpgroup = 'common/gpu/warpgroup.cuh';
my @mutations = (
    ['00_naive', '', $naive, 'visible ? p.scale * dot', 'visible ? dot', 'scale dropped'],
    ['00_naive', '', $naive, 'float shift = m == -INFINITY ? 0 : m;', 'float shift = 0;', 'max not subtracted'],
    ['00_naive', '', $naive, 'float shift = m == -INFINITY ? 0 : m;', 'float shift = m;', 'row without keys becomes NaN'],
    ['00_naive', '', $naive, 't.lse[flat_row] = shift + logf(l);', 't.lse[flat_row] = logf(l);', 'LSE without the max'],
    ['00_naive', '', $naive, 't.lse[flat_row] = shift + logf(l);', 't.lse[flat_row] = shift + log2f(l);', 'LSE in base 2'],
    ['00_naive', '', $naive, 'element >= query_elements(&p)', 'false', 'tail elements written past the end'],
    ['00_naive', '', $naive, 'column < visible_keys(', 'column <= visible_keys(', 'mask off by one'],
    ['00_naive', '', $problem, 'row + (key_length - p->seqlen_q) + 1', 'row + (key_length - p->seqlen_q)', 'causal mask off by one'],
    ['00_naive', '', $problem, 'row + (key_length - p->seqlen_q) + 1', 'row + 1', 'causal aligned top left'],
    ['00_naive', '', $problem, 'return head / (p->heads / p->kv_heads)', 'return head % p->kv_heads', 'wrong K/V head for a group'],
    ['00_naive', '', $problem, '((size_t)batch * p->heads + head) *', '((size_t)head * p->batch + batch) *', 'batch and head strides swapped'],
    ['00_naive', '', $problem, 'key_lengths ? key_lengths[batch]', '0 ? key_lengths[batch]', 'key lengths ignored'],
    ['01_tiled', 'fma', $fma, 'column < visible ? p.scale', 'true ? p.scale', 'nothing masked'],
    ['01_tiled', 'fma', $fma, 'if (row < p.seqlen_q && d < p.head_dim)', 'if (d < p.head_dim)', 'tail rows written past the end'],
    ['01_tiled', 'fma', $fma, "multiply_slice(shared, c);\n        __syncthreads();", "multiply_slice(shared, c);", 'barrier after use removed'],
    ['01_tiled', 'fma', $fma, '__syncthreads(); /* the slice is there */', '', 'barrier before use removed'],
    ['01_tiled', 'mma', $tiled, 'float scale = l > 0 ? P_SCALE / l : 0;', 'float scale = P_SCALE / l;', 'row without keys divided by 0'],
    ['01_tiled', 'mma', $tiled, 'for (int offset = 16; offset > 0', 'for (int offset = 8; offset > 0', 'half a warp left out of the max'],
    ['01_tiled', 'mma', $mma, 'column + 1 < visible', 'column < visible', 'mask off by one in the second of a pair'],
    ['01_tiled', 'mma', $mma, "if (row >= p.seqlen_q)\n            continue;\n#pragma unroll\n        for (int d = 0; d < D / 8", "#pragma unroll\n        for (int d = 0; d < D / 8", 'tail rows written past the end'],
    ['01_tiled', 'mma', $mma, 'cp_async_wait<0>();', '', 'no wait for the copies'],
    ['01_tiled', 'mma', $mma, 'first_key < keys; first_key += Bc', 'first_key < keys - Bc; first_key += Bc', 'last key tile skipped'],
    ['01_tiled', 'mma', $mma, 'float o[D / 8][4] = {};', 'float o[D / 8][4];', 'accumulators not initialised'],
    ['01_tiled', 'mma', 'common/gpu/tile.cuh', 'return row * D + 8 * (chunk ^ swizzle_key<D>(row));', 'return row * D + 8 * ((chunk ^ swizzle_key<D>(row)) & 7);', 'swizzle that drops the upper half of a row'],
    ['01_tiled', 'mma', $tiled, 'P_SCALE = 1024', 'P_SCALE = 1', 'P of long rows too small for fp16'],
    ['02_online_softmax', 'fma', $online_fma, 'l = alpha * l + beta * l_other;', 'l = l + beta * l_other;', 'rescale of the row sum skipped'],
    ['02_online_softmax', 'fma', $online_fma, 'm[i] = -INFINITY', 'm[i] = 0', 'maximum starts at 0'],
    ['02_online_softmax', 'fma', $online_fma, 'offset = ACROSS / 2; offset > 0', 'offset = ACROSS / 2; offset > 1', 'half of the threads of a row left out'],
    ['02_online_softmax', 'fma', $online_fma, 'c + ACROSS * n < visible[i])', 'c + ACROSS * n <= visible[i])', 'mask off by one in pass 1'],
    ['02_online_softmax', 'fma', $online_fma, 'c + ACROSS * n < visible[i] ?', 'c + ACROSS * n <= visible[i] ?', 'mask off by one in pass 2'],
    ['02_online_softmax', 'fma', $online_fma, 'lse[i] = m[i] + logf(l[i]);', 'lse[i] = m[i];', 'P not divided by the row sum'],
    ['02_online_softmax', 'fma', $online_fma, 'i / D < exist ? to_float(rows[i]) : 0', 'to_float(rows[i])', 'keys that do not exist are read'],
    ['02_online_softmax', 'fma', $online_fma, '__syncthreads(); /* P is there */', '', 'barrier before P is read removed'],
    ['02_online_softmax', 'online', $online, 'P_SCALE = 1024, LN_P_SCALE = 6.9314718f', 'P_SCALE = 1, LN_P_SCALE = 0', 'P of long rows too small for fp16'],
    ['02_online_softmax', 'online', $online, '__expf(a.m - shift) * a.l + __expf(b.m - shift) * b.l', 'a.l + __expf(b.m - shift) * b.l', 'rescale of the row sum skipped'],
    ['02_online_softmax', 'online', $online, '{{-INFINITY, 0}, {-INFINITY, 0}}', '{{0, 0}, {0, 0}}', 'maximum starts at 0'],
    ['02_online_softmax', 'online', $online, 'pair[1] - shift[i % 2]', 'pair[1]', 'LSE not subtracted from half of the columns'],
    ['02_online_softmax', 'online', $online, '__syncthreads(); /* and done with, before the next overwrite them */', '', 'barrier after use removed'],
    ['03_fa1', 'fma', $fa1_fma, 'o[i][d] *= alpha * row_l[i];', 'o[i][d] *= row_l[i];', 'rescale of O skipped'],
    ['03_fa1', 'fma', $fa1_fma, 'o[i][d] *= alpha * row_l[i];', 'o[i][d] *= alpha;', 'old O not weighted by its row sum'],
    ['03_fa1', 'fma', $fa1_fma, 'row_l[i] = alpha * row_l[i] + beta * l_tile;', 'row_l[i] += beta * l_tile;', 'rescale of the row sum skipped'],
    ['03_fa1', 'fma', $fa1_fma, '= beta * s[i][n];', '= s[i][n];', 'the new tile not scaled down'],
    ['03_fa1', 'fma', $fa1_fma, 'bool old = !first && ', 'bool old = ', 'O, l and m not initialised'],
    ['03_fa1', 'fma', $fa1_fma, 'first_column == 0 || first_column < keys', 'first_column < keys', 'O of an entry without keys not written'],
    ['03_fa1', 'fma', $fa1_fma, 'first_column + Bc >= columns', 'first_column + Bc > columns', 'the last step missed at a whole tile'],
    ['03_fa1', 'fma', $fa1_fma, 'c + ACROSS * n < visible ?', 'c + ACROSS * n <= visible ?', 'mask off by one'],
    ['03_fa1', 'fma', $fa1_fma, '__syncthreads(); /* Q, P~, K and V are done with', '/* Q, P~, K and V are done with', 'barrier after use removed'],
    ['03_fa1', 'fa1', $fa1, '= alpha * shared.l[threadIdx.x] * inverse;', '= inverse;', 'rescale of O skipped'],
    ['03_fa1', 'fa1', $fa1, 'float l_new = alpha * shared.l[threadIdx.x] + beta * l_tile;', 'float l_new = shared.l[threadIdx.x] + beta * l_tile;', 'rescale of the row sum skipped'],
    ['03_fa1', 'fa1', $fa1, 'first ? make_float4(0, 0, 0, 0) : *reinterpret', '*reinterpret', 'accumulator not initialised'],
    ['03_fa1', 'fa1', $fa1, '__syncthreads(); /* every warp\'s sum is there */', '', 'barrier before the sums are read removed'],
    ['04_fa2', 'epilogue', $epilogue, 'make_float4(alpha * old.x', 'make_float4(old.x', 'rescale of O skipped in a column'],
    ['04_fa2', 'loop_swap', $loop_swap, 'alpha * l[i][h] + row_sum', 'l[i][h] + row_sum', 'rescale of the row sum skipped'],
    ['04_fa2', 'loop_swap', $loop_swap, 'pack_pair<T>(inverse * sum.x, inverse * sum.y)', 'pack_pair<T>(inverse * inverse * sum.x, inverse * sum.y)', 'O divided twice'],
    ['04_fa2', 'loop_swap', $loop_swap, 'load_tile_async<THREADS>(shared.k, k, first_column + Bc, columns);', 'load_tile_async<THREADS>(shared.k, k, first_column, columns);', 'the same K tile again'],
    ['04_fa2', 'split_q', $split_q, 'int warp_row = 16 * m_tiles * warp;', 'int warp_row = 0;', 'every warp takes the first rows'],
    ['04_fa2', 'split_q', $split_q, 'm_new[i][h] = fmaxf(m[i][h], quad_max(row_max))', 'm_new[i][h] = fmaxf(m[i][h], row_max)', 'each lane has a maximum of its own'],
    ['04_fa2', 'split_q', $split_q, 'float l_row = quad_sum(l[i][h])', 'float l_row = l[i][h]', 'only one lane of four in the row sum'],
    ['04_fa2', 'split_q', $split_q, 'o[i][d][2 * h + 1] *= alpha;', ';', 'rescale of O skipped in half of the columns'],
    ['04_fa2', 'split_q', $split_q, 'column < visible', 'column <= visible', 'mask off by one'],
    ['04_fa2', 'split_q', $split_q, '__syncthreads(); /* V is there', '/* V is there', 'no barrier before V is read and K overwritten'],
    ['04_fa2', 'split_q', $split_q, 'if (row >= p.seqlen_q)', 'if (false)', 'tail rows written past the end'],
    ['04_fa2', 'split_q', $split_q, 'shift_of(m[i][h]) + logf(l_row)', 'logf(l_row)', 'LSE without the max'],
    ['04_fa2', 'tuned', $tuned, 'scale_log2 = p.scale * LOG2_E', 'scale_log2 = p.scale', 'log2e forgotten'],
    ['04_fa2', 'tuned', $tuned, 'o[i][d][2 * h + 1] *= alpha;', ';', 'rescale of O skipped in half of the columns'],
    ['04_fa2', 'tuned', $tuned, 'l[i][h] *= alpha;', '', 'rescale of the row sum skipped'],
    ['04_fa2', 'tuned', $tuned, 'm[i][h] = LOWEST;', 'm[i][h] = 0;', 'maximum starts at 0'],
    ['04_fa2', 'tuned', $tuned, 'm[i][h] * LN_2 + logf(l_row)', 'logf(l_row)', 'LSE without the max'],
    ['04_fa2', 'tuned', $tuned, 'm[i][h] * LN_2 + logf(l_row)', 'm[i][h] + log2f(l_row)', 'LSE in base 2'],
    ['04_fa2', 'tuned', $tuned, 'whole_tiles = visible_keys(&p, keys, first_row) / Bc', 'whole_tiles = key_tiles', 'diagonal and tail tiles not masked'],
    ['04_fa2', 'tuned', $tuned, 'int tile = key_tiles - 1; tile >= 0', 'int tile = key_tiles - 1; tile > 0', 'first key tile skipped'],
    ['04_fa2', 'tuned', $tuned, '8 * n < visible', '8 * n <= visible', 'mask off by one'],
    ['04_fa2', 'tuned', $tuned, '__syncthreads(); /* this tile is there', '/* this tile is there', 'the one barrier of the loop removed'],
    ['04_fa2', 'tuned', $tuned, 'inverse = l_row > 0 ? 1 / l_row : 0', 'inverse = 1 / l_row', 'row without keys divided by 0'],
    ['04_fa2', 'tuned', $tuned, 'm[i][h] = LOWEST;', 'm[i][h] = -1e30f;', 'rows whose scores are all below the start look empty'],
    ['04_fa2', 'tuned', $tuned, '__syncthreads(); /* without a key tile', '/* without a key tile', 'O overwrites Q before it has come'],
    ['04_fa2', 'tuned', 'common/gpu/tile.cuh', 'if (first_row + r < row_end)', 'if (true)', 'tail rows written past the end'],
    # the backward
    ['05_fa2_backward', '', $naive_backward, 'p.scale * score - t.lse', 'score - t.lse', 'scale dropped'],
    ['05_fa2_backward', '', $naive_backward, 'member < group', 'member < 1', 'dK and dV missing the heads of a group'],
    ['05_fa2_backward', 'two_pass', $backward, 'delta += to_float(o[i]) * to_float(d_o[i]);', '', 'delta left out of dS'],
    ['05_fa2_backward', 'two_pass', $backward, 'lse == -INFINITY ? INFINITY : lse * LOG2_E', 'lse * LOG2_E', 'rows without keys not set apart'],
    ['05_fa2_backward', 'two_pass', $backward, 'lse == -INFINITY ? INFINITY : lse * LOG2_E', 'lse == -INFINITY ? INFINITY : lse', 'LSE in the wrong base'],
    ['05_fa2_backward', 'two_pass', $key_half, '16 * i + 8 * h >= visible', '16 * i + 8 * h > visible', 'mask off by one'],
    ['05_fa2_backward', 'two_pass', $key_half, 'first_column + Bc > visible_keys(&p, keys, first_row)', 'false', 'nothing masked'],
    ['05_fa2_backward', 'two_pass', $two_pass, 'dq, p.scale)', 'dq, 1)', 'scale left out of dQ'],
    ['05_fa2_backward', 'two_pass', $key_half, 'dk, p.scale)', 'dk, 1)', 'scale left out of dK'],
    ['05_fa2_backward', 'two_pass', $key_half, 'group * (query_tiles - first_tile) : 0', '(query_tiles - first_tile) : 0', 'dK and dV missing the heads of a group'],
    ['05_fa2_backward', 'two_pass', $key_half, '__syncthreads(); /* the other warp\'s P and dS are there */', '', 'no barrier between the warps of a pair'],
    ['05_fa2_backward', 'two_pass', $key_half, '__syncthreads(); /* Q and dO are there', '/* Q and dO are there', 'no barrier after the wait'],
    ['05_fa2_backward', 'two_pass', $two_pass, 'tile >= whole_tiles', 'tile > whole_tiles', 'diagonal tile of dQ not masked'],
    ['05_fa2_backward', 'two_pass', $key_half, 'max(first_column - (keys - p.seqlen_q), 0)', 'max(first_column, 0)', 'causal aligned top left: query tiles skipped'],
    ['05_fa2_backward', 'atomic', $atomic, 'p.scale * __uint_as_float(bits.x)', '__uint_as_float(bits.x)', 'scale left out of dQ'],
    ['05_fa2_backward', 'atomic', $backward, 'if (dq_accumulator) {', 'if (false) {', 'dQ not zeroed before the atomics'],
    ['05_fa2_backward', 'atomic', $atomic, '__syncthreads(); /* the dS of all warps is there */', ';', 'no barrier before dQ'],
    ['05_fa2_backward', 'atomic', $atomic, 'if (row + 8 < p.seqlen_q)', 'if (row < p.seqlen_q)', 'tail rows of dQ written past the end'],
    ['05_fa2_backward', 'atomic', $backward, 'if (row >= row_end)', 'if (false)', 'tail keys written past the end'],
    ['05_fa2_backward', 'atomic', $key_half, 'tile + 1 == query_tiles', 'tile == query_tiles', 'a head of the group walks past its queries'],
    # 8 bits
    ['06_fp8', 'mma', $fp8_mma, 'LOG2_E * q_scale * k_scale', 'LOG2_E * k_scale', 'scale of Q left out'],
    ['06_fp8', 'mma', $fp8_mma, 'LOG2_E * q_scale * k_scale', 'LOG2_E * q_scale', 'scale of K left out'],
    ['06_fp8', 'mma', $fp8_mma, 'v_scale * product[1][i]', 'product[1][i]', 'scale of V left out of half of the columns'],
    ['06_fp8', 'mma', $fp8_mma, 'x.v_scales[first_k_scale + tile * Bc / BLOCK_K]', 'x.v_scales[first_k_scale]', 'the scale of another key tile'],
    ['06_fp8', 'mma', $fp8_mma, 'shift = E::largest_exponent - m[h]', 'shift = E::largest_exponent - 1 - m[h]', 'P scaled by another power than LSE takes out'],
    ['06_fp8', 'mma', $fp8_mma, 'shift = E::largest_exponent - m[h]', 'shift = E::largest_exponent + 1 - m[h]', 'P beyond the largest number'],
    ['06_fp8', 'mma', $fp8_mma, ' + x.lse_shift[flat_row]', '', 'LSE without what smoothing took'],
    ['06_fp8', 'mma', $fp8_mma, 'load_b_fragments(b, v_tile, 8 * d, step)', 'load_b_fragments_trans(b, v_tile, step, 8 * d)', 'V read as if it were not transposed'],
    ['06_fp8', 'mma', $fp8_mma, 'alpha[i / 2] * o[d + 1][i]', 'o[d + 1][i]', 'rescale of O skipped in half of the columns'],
    ['06_fp8', 'mma', $fp8_mma, '__syncthreads(); /* this tile is there', '/* this tile is there', 'the one barrier of the loop removed'],
    ['06_fp8', 'mma', $fp8_mma, '__syncthreads(); /* every warp is done with K and V', '/* every warp is done with K and V', 'O overwrites K'],
    ['06_fp8', 'mma', '06_fp8/fp8.h', 'return place / 16 * 16 + 2 * lane + (i & 1) + 8 * (i >> 1);', 'return place / 16 * 16 + 4 * lane + i;', 'keys of V in their natural order'],
    ['06_fp8', 'mma', $quantise, 'lse_shift ? nullptr : mean, p.settings[HADAMARD])', 'lse_shift ? nullptr : mean, lse_shift && p.settings[HADAMARD])', 'K not rotated'],
    ['06_fp8', 'mma', $rotate, 'factor * rotation_sign(8 * chunk + i)', 'factor', 'rotation without its signs'],
    ['06_fp8', 'mma', $rotate, 'step < D / 8; step *= 2', 'step < D / 16; step *= 2', 'a round of butterflies left out'],
    ['06_fp8', 'mma', $row_tile, 'fmaxf(largest, fabsf(x[r][i]))', 'fmaxf(largest, x[r][i])', 'the maximum of x for that of |x|'],
    ['06_fp8', 'mma', $row_tile, 'amax / F::largest', 'amax / (2 * F::largest)', 'scale too small: everything large saturates'],
    ['06_fp8', 'mma', $quantise, 'p.scale * scale * dot_with_mean', 'p.scale * dot_with_mean', 'scale of Q left out of the shift of LSE'],
    ['06_fp8', 'mma', $quantise, "rotate<D>(turned_mean, tile.chunk());", ';', 'the mean not rotated where Q is'],
    ['06_fp8', 'mma', $transpose, "__syncthreads();\n    F *to", "F *to", 'no barrier before V leaves shared memory'],
    ['06_fp8', 'mma', $row_tile, "__syncthreads();\n#pragma unroll\n    for (int warp", "#pragma unroll\n    for (int warp", 'no barrier before the warps\' maxima are read'],
    ['06_fp8', 'mma', $transpose, '(i / chunks) * key_pitch(&p)', '(i / chunks) * p.seqlen_k', 'rows of transposed V not padded'],
    ['06_fp8', 'wgmma', $fp8_wgmma, 'alpha[h] *= o_scale / v_scale;', '', 'scale of V left out between tiles'],
    ['06_fp8', 'wgmma', $fp8_wgmma, 'exponent[h] = E::largest_exponent - m_new', 'exponent[h] = E::largest_exponent + 1 - m_new', 'P beyond the largest number'],
    ['06_fp8', 'wgmma', $fp8_wgmma, ' + scales.lse_shift[flat_row]', '', 'LSE without what smoothing took'],
    ['06_fp8', 'wgmma', $fp8_wgmma, 'mbarrier_wait(&shared.v_full, parity);', '', 'no wait for V'],
    ['06_fp8', 'wgmma', $fp8_wgmma, 'mbarrier_wait(&shared.k_full, parity);', '', 'no wait for K'],
    ['06_fp8', 'wgmma', $fp8_wgmma, 'positive(p.scale', '(p.scale', 'NaN where the scales together are 0'],
    ['06_fp8', 'mma', $fp8_mma, 'positive(p.scale', '(p.scale', 'NaN where the scales together are 0'],
    ['06_fp8', 'mma', $fp8_mma, '{LOWEST, LOWEST}', '{-1e30f, -1e30f}', 'scores below where the maximum starts'],
    ['06_fp8', 'wgmma', $fp8_wgmma, '{LOWEST, LOWEST}', '{-1e30f, -1e30f}', 'scores below where the maximum starts'],
    ['06_fp8', 'wgmma', $warpgroup, '8 * n < visible', '8 * n <= visible', 'mask off by one'],
    ['06_fp8', 'mma', $fp8_mma, 'tile_l[h] += four[j];', 'l[h] += four[j];', 'a long row loses bits of every P'],
    ['tests/prepared', '', 'common/judge/prepared.c', 'fmax(longest, r->least_amax)', 'longest', 'scales that never end'],
    # decoding
    ['07_flash_decoding', 'one_block', $one_block, 'load(tile + STAGES - 1);', 'load(tile + STAGES);', 'the wrong keys are copied'],
    ['07_flash_decoding', 'one_block', $decode, '__syncthreads(); /* all warps have come */', '', 'warps merged before all have come'],
    ['07_flash_decoding', 'one_block', $decode, 'l += weight * warp[w].l', 'l += warp[w].l', 'row sums of warps added without weights'],
    ['07_flash_decoding', 'one_block', $decode, 'cp_async_wait<2 * (STAGES - 1)>', 'cp_async_wait<2 * STAGES>', 'no wait for the copies'],
    ['07_flash_decoding', 'one_block', $decode, 'index % work.row_tiles * work.tile_rows', '0', 'the first row tile again'],
    ['07_flash_decoding', 'one_block', $mma_rows, 'first_column + Bc > whole', 'false', 'nothing masked'],
    ['07_flash_decoding', 'one_block', $mma_rows, '8 * n < left', '8 * n <= left', 'mask off by one'],
    ['07_flash_decoding', 'one_block', $mma_rows, '(head.row + row) % p.seqlen_q', 'head.row + row', 'rows of a group taken for queries'],
    ['07_flash_decoding', 'one_block', $mma_rows, 'l[i][h] *= factor;', '', 'rescale of the row sum skipped'],
    ['07_flash_decoding', 'one_block', $mma_rows, '(four.x & 0xffff) | four.y << 16', 'four.x', 'Q in another order than the 8-bit K'],
    ['07_flash_decoding', 'one_block', $one_block, 'p.scale * scale_of(cache.k_scale, head)', 'p.scale', 'scale of K left out'],
    ['07_flash_decoding', 'one_block', $one_block, 'scale_of(cache.v_scale, head)', '1', 'scale of V left out'],
    ['07_flash_decoding', 'one_block', $fma_rows, 'first_column + key >= visible[row]', 'first_column + key > visible[row]', 'fp32: mask off by one'],
    ['07_flash_decoding', 'one_block', $fma_rows, 'l[row] * factor + s[row]', 'l[row] + s[row]', 'fp32: rescale of the row sum skipped'],
    ['07_flash_decoding', 'one_block', '07_flash_decoding/cache.cu', 'm / E4M3_LARGEST', 'm / (4 * E4M3_LARGEST)', 'scale too small: everything large saturates'],
    ['07_flash_decoding', 'split_k', $split_k, 'weight = expf(partials.lse[piece * rows + row] - m)', 'weight = 1', 'merge of the pieces without weights'],
    ['07_flash_decoding', 'split_k', $split_k, 'piece < pieces; piece++', 'piece < pieces - 1; piece++', 'last piece left out'],
    ['07_flash_decoding', 'split_k', $split_k, 'place = piece * row_count(&p) + head_row', 'place = piece * work.rows + head_row', 'partial results of two heads in one place'],
    ['07_flash_decoding', 'split_k', $split_k, 'end = min(first + split.tiles, head.tiles)', 'end = head.tiles', 'every piece walks to the end of the head'],
    ['07_flash_decoding', 'split_k', $split_k, 'l > 0 ? m + logf(l)', 'l > 0 ? logf(l)', 'LSE without the max'],
    ['07_flash_decoding', 'split_k', $split_k, 'p.scale * scale_of(cache.k_scale, head)', 'p.scale', 'scale of K left out'],
    ['07_flash_decoding', 'split_k', $split_k, 'scale_of(cache.v_scale, head)', '1', 'scale of V left out'],
    ['07_flash_decoding', 'equal_shares', $equal_shares, 'weight = exp2_approx((lse[a][i] - m_new) * LOG2_E)', 'weight = 1', 'merge of the pieces without weights'],
    ['07_flash_decoding', 'equal_shares', $equal_shares, 'j + a * warps < count;', 'j + a * warps < count - 1;', 'last piece left out'],
    ['07_flash_decoding', 'equal_shares', $equal_shares, 'm[i] = LOWEST;', 'm[i] = -INFINITY;', 'NaN from rows that see nothing of a piece'],
    ['07_flash_decoding', 'equal_shares', $equal_shares, 'to_m[slab_row + row] = m[i] * LOG2_E', 'to_m[slab_row + row] = m[i]', 'merged maximum not in base 2'],
    ['07_flash_decoding', 'equal_shares', $equal_shares, 'blockIdx.x + part.index) * partials.rows', 'blockIdx.x) * partials.rows', 'partial results of two heads in one place'],
    ['07_flash_decoding', 'equal_shares', $equal_shares, 'partials.tickets[part.index] = 0;', ';', 'tickets not reset'],
    ['07_flash_decoding', 'equal_shares', $equal_shares, '== pieces - 1;', '== pieces - 2;', 'merged by the last but one'],
    ['07_flash_decoding', 'equal_shares', $equal_shares, 'start + end > (int)blockIdx.x * share', 'start + end > (int)blockIdx.x * share + 1', 'the entry after'],
    ['07_flash_decoding', 'equal_shares', $equal_shares, 'c.start += skipped * tiles, c.tile', 'c.tile', 'a head that was skipped still counts'],
    ['07_flash_decoding', 'equal_shares', $equal_shares, 'c.start += c.head.tiles, c.tile = 0;', 'c.tile = 0;', 'the next head starts where this one did'],
    ['07_flash_decoding', 'equal_shares', $equal_shares, 'p.scale * scale_of(cache.k_scale, head)', 'p.scale', 'scale of K left out'],
    ['07_flash_decoding', 'equal_shares', $equal_shares, 'o_scale = scale_of(cache.v_scale, head)', 'o_scale = 1', 'scale of V left out'],
    # asynchrony
    ['08_fa3', 'wgmma', $fa3, 'm[h] * LN_2 + logf(l_row)', 'logf(l_row)', 'LSE without the max'],
    ['08_fa3', 'wgmma', $fa3, 'tile_l += s[j];', 'l[h] += s[j];', 'a long row loses bits of every P'],
    ['08_fa3', 'wgmma', $fa3, 'l[h] *= alpha[h];', '', 'rescale of the row sum skipped'],
    ['08_fa3', 'wgmma', $warpgroup, '8 * n < visible', '8 * n <= visible', 'mask off by one'],
    ['08_fa3', 'wgmma', $fa3, 'shift_of(m_new)', 'm_new', 'NaN in rows that see no key of a tile'],
    ['08_fa3', 'wgmma', $warpgroup, 'upper ? x[i] : x[i + distance]', 'upper ? x[i + distance] : x[i]', 'the quad swaps the wrong atoms'],
    ['08_fa3', 'wgmma', $fa3, 'store_16(v.chunk(i / chunks, i % chunks), uint4{0, 0, 0, 0});', ';', 'NaN behind a key length'],
    ['08_fa3', 'wgmma', $fa3_wgmma, 'shared.v.offset_mn(step)', 'shared.v.offset(step)', 'V read as if it were transposed'],
    ['08_fa3', 'wgmma', $fa3_wgmma, 'wgmma_wait<0>(s);', '', 'S is used before it is there'],
    ['08_fa3', 'specialised', $fa3_specialised, 'mbarrier_wait(&shared.k_empty[place(n)], parity(n) ^ 1);', '', 'K is overwritten while it is read'],
    ['08_fa3', 'specialised', $fa3_specialised, 'mbarrier_wait(&shared.v_full[place(n)], parity(n));', '', 'no wait for V'],
    ['08_fa3', 'specialised', $fa3_specialised, 'shared.q.descriptor(64 * consumer)', 'shared.q.descriptor()', 'both consumers compute the same rows'],
    ['08_fa3', 'specialised', $fa3_specialised, 'n / STAGES % 2', 'n % 2', 'the parity of another phase'],
    ['08_fa3', 'overlapped', $fa3_overlapped, 'wgmma_wait<0>(o, a);', '', 'O is rescaled while P V runs'],
    ['08_fa3', 'overlapped', $fa3_overlapped, "if (moved)\n                    rescale(o, alpha);", '', 'rescale of O skipped'],
    ['08_fa3', 'overlapped', $fa3_overlapped, '*next = 0;', ';', 'the counter not set back'],
    ['08_fa3', 'overlapped', $fa3_overlapped, 'mbarrier_wait(&shared.q_empty, q_turn++ % 2 ^ 1);', 'q_turn++;', 'Q is overwritten while it is read'],
    ['08_fa3', 'overlapped', $fa3_overlapped, 'i = gridDim.x + taken;', 'i = gridDim.x + taken + 1;', 'a tile left out'],
    ['tests/fp8', '', 'common/numeric.h', 'code < 0x7e ? code : 0x7e', 'code', 'e4m3 does not saturate'],
    ['tests/fp8', '', 'common/numeric.h', 'code < 0x7b ? code : 0x7b', 'code', 'e5m2 does not saturate'],
    # the judge
    ['tests/verdict', '', 'common/device/device_cpu.c', 'memset(device, 0xff, bytes);', ';', 'device_poison does nothing'],
);

my $build = $ENV{TEST_BUILD} || 'build/cpu';
my $only = $ENV{MUTATION};    # a number: just this one
my %stages = map { $_->[0] => 1 } @mutations;
in_copies($build, \&try, (defined $only ? () : sort keys %stages), grep { !defined $only || $only == $_ } 0 .. $#mutations);

# Where nothing is changed nothing may be caught, else all that follows would be worth nothing.
sub try_unchanged {
    my ($stage) = @_;
    my $test = test_of($stage);
    my ($built, $log) = built($test, 'KERNEL_OPTIMISE=-O1');
    return ["$stage: unchanged, it passes", $built && !is_caught("$test --quick"), $log];
}

sub test_of { return $_[0] =~ /^tests\// ? "$build/$_[0]" : "$build/tests/grid_$_[0]" } # a stage's grid, or a test of its own

# A thread order other than the usual one exposes barriers that are missing.
sub is_caught {
    my ($command) = @_;
    return any { system("CPU_DEVICE_ORDER=$_ timeout 120 $command >/dev/null 2>&1") != 0 } ('forward', 'shuffle');
}

sub try {
    my ($number) = @_;
    return try_unchanged($number) if $number =~ /\D/;
    my ($stage, $variant, $file, $from, $to, $mistake) = @{$mutations[$number]};
    my $name = "$stage" . ($variant ? "/$variant" : '') . ": $mistake";
    my $source = read_file($file);
    (my $mutated = $source) =~ s/\Q$from\E/$to/g; # everywhere in the file
    return ["$name (mutation $number: the line is no longer in $file)", 0] if $mutated eq $source;

    return with_file($file, $mutated, sub {
        my $test = test_of($stage);
        my ($built, $log) = built($test, 'KERNEL_OPTIMISE=-O1'); # compiles in half the time
        return ["$name (mutation $number does not compile)", 0, $log] if !$built;
        my $option = $variant ? "--variant $variant" : '';
        my $caught = is_caught("$test --quick $option")
            || system("$test $option >/dev/null 2>&1") != 0; # what the eighth misses, what `make test` takes may see
        return [$name, $caught];
    });
}
