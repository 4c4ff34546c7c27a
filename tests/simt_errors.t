#!/usr/bin/env perl
# What the CPU device says of wrong kernels: the message (block, threads, file, line), exit code 1, and no hang. A
# launch that no GPU takes is the problem's fault, not the kernel's: exit code 2.
use strict;
use warnings;
use Test::More;

my $source  = 'tests/simt_errors.cu';
my $program = ($ENV{TEST_BUILD} // 'build/cpu') . '/tests/simt_errors';

# Where the lines marked /* @name */ are.
my %line;
open my $file, '<', $source or die "$source: $!";
while (<$file>) { $line{$1} = $. if m{/\* @(\w+)} }
close $file;

# Runs the program; returns its exit code (or "signal N") and all it printed.
sub run {
    my ($argument, %environment) = @_;
    my $pid = open(my $output, '-|') // die "fork: $!";
    if (!$pid) {
        open STDERR, '>&', \*STDOUT;
        @ENV{keys %environment} = values %environment;
        alarm 20;    # a hang is a failure, not a test that never ends
        exec $program, $argument or die "$program: $!";
    }
    my $text = do { local $/; <$output> } // '';
    close $output;
    return ($? & 127 ? 'signal ' . ($? & 127) : $? >> 8, $text);
}

# A message, with @name for the place of that marker and 0x... for any address.
sub says {
    my ($case, $want, $exit) = (@_, 1);
    for my $order (qw(forward reverse shuffle)) {
        my ($code, $text) = run($case, CPU_DEVICE_ORDER => $order);
        (my $expected = $want) =~ s/@(\w+)/$source:$line{$1}/g;
        $expected =~ s/, block \S+\K: /: no thread can continue; / and $expected =~ s/; /\n    /g;    # a line a group
        $text =~ s/0x[0-9a-f]{9,}/0x.../g;
        is $text, "$expected\n", "$case, $order: the message";
        is $code, $exit, "$case, $order: exit code $exit";
    }
}

my $bad = 'block (1,2,0)';
says early_return => "kernel early_return, $bad: threads 0-30,32-63 wait at __syncthreads (\@early_return); "
  . 'thread 31 has returned';
says two_barriers => "kernel two_barriers, $bad: threads 0-15,32-47 wait at __syncthreads (\@two_barriers_a); "
  . 'threads 16-31,48-63 wait at __syncthreads (@two_barriers_b)';
says one_round_more => "kernel one_round_more, $bad: threads 0-4,6-12,14-15 have returned; "
  . 'threads 5,13 wait at __syncthreads (@one_round_more)';
says lane_at_barrier => "kernel shuffle_without_a_lane<33>, $bad: threads 0-31,33 wait at __syncthreads (\@shuffle_b); "
  . 'threads 32,34-63 wait at __shfl_xor_sync (@shuffle_a)';
says two_shuffles => "kernel two_shuffles, $bad: threads 0,2 wait at __shfl_xor_sync (\@two_shuffles_b); "
  . 'threads 1,3 wait at __shfl_xor_sync (@two_shuffles_a)';
says different_masks => "kernel different_masks, $bad: threads 0-3 wait at __shfl_sync (\@masks) for the lanes 0x000000ff; "
  . 'threads 4-15 have returned';
says masks_that_meet => "kernel masks_that_meet, $bad: threads 0-3 wait at __shfl_sync (\@meet) for the lanes 0x000000ff; "
  . 'threads 4-7 wait at __shfl_sync (@meet) for the lanes 0x000001ff; threads 8-15 have returned';
says not_in_mask => "kernel not_in_mask, $bad, thread 8: __syncwarp: lane 8 is not in its own mask (\@not_in_mask)";
says mma => "kernel mma_without_a_lane, $bad: threads 0-31,40 have returned; "
  . 'threads 32-39,41-63 wait at mma_m16n8k16 (@mma)';
says past_the_end => "kernel bad_address, $bad, thread 9: cp_async_16: address 0x... is not in the block's 4096 bytes of "
  . 'shared memory (@past_the_end)';
says not_shared => "kernel bad_address, $bad, thread 9: ldmatrix_x4: address 0x... is not in the block's 4096 bytes of "
  . 'shared memory (@not_shared)';
says unaligned => "kernel bad_address, $bad, thread 9: ldmatrix_x4: address 0x... is not aligned to 16 bytes (\@unaligned)";
says load      => "kernel bad_address, $bad, thread 9: load_16: address 0x... is not aligned to 16 bytes (\@load)";
says too_many_arrivals => "kernel hopper, $bad: threads 0-127 wait at mbarrier_wait (\@wait), byte 4096 of shared memory, for parity 0: "
  . "1 of 2 arrivals and 0 bytes are missing";
says not_initialised => "kernel hopper, $bad, thread 0: mbarrier_arrive: the mbarrier was not initialized (\@arrive)";
says warp_missing => "kernel hopper, $bad: threads 0-63,96-127 wait at wgmma_fence (\@fence); threads 64-95 have returned";
says wrong_parity => "kernel ring, block (0,0,0): thread 0 waits at mbarrier_wait (\@empty), byte 2064 of shared memory, for "
  . 'parity 0: 32 of 32 arrivals and 0 bytes are missing; threads 1-31,64-95 have returned; '
  . 'threads 32-63 wait at mbarrier_wait (@full), byte 2048 of shared memory, for parity 0: 1 of 1 arrivals and 0 bytes are missing';
says no_copy => "kernel ring, block (0,0,0): thread 0 waits at mbarrier_wait (\@empty), byte 2072 of shared memory, for "
  . 'parity 1: 32 of 32 arrivals and 0 bytes are missing; threads 1-31,64-95 have returned; '
  . 'threads 32-63 wait at mbarrier_wait (@full), byte 2056 of shared memory, for parity 1: 0 of 1 arrivals and 1024 bytes are missing';
for ([too_many_bytes => 128], [too_few_bytes => -128]) {
    says $_->[0] => "kernel ring, block (0,0,0): thread 0 waits at mbarrier_wait (\@empty), byte 2064 of shared memory, for "
      . 'parity 0: 32 of 32 arrivals and 0 bytes are missing; threads 1-31,64-95 have returned; threads 32-63 wait at '
      . "mbarrier_wait (\@full), byte 2048 of shared memory, for parity 0: 0 of 1 arrivals and $_->[1] bytes are missing";
}
says bulk_bytes => "kernel bulk, $bad, thread 9: bulk_add: 24 bytes; choose a multiple of 16 (\@bulk)";
says $_ => "kernel bulk, $bad, thread 9: bulk_add: address 0x... is not aligned to 16 bytes (\@bulk)" for 'bulk_shared', 'bulk_device';
says named_too_few => 'kernel named, block (0,0,0): threads 0-63 have returned; '
  . 'threads 64-95 wait at named_barrier_sync (@named), barrier 3: 64 of 96 threads are there';
says named_half_a_warp => 'kernel named, block (0,0,0): threads 0-31 have returned; '
  . 'threads 32-95 wait at named_barrier_sync (@named), barrier 3: 80 of 96 threads are there';
says no_decrease => 'kernel registers, block (0,0,0): threads 0-127 have returned; '
  . 'threads 128-383 wait at setmaxnreg_increase (@more) for 64 more registers per thread: 8192 in all, but only 0 are free';
says warps_apart => 'kernel registers, block (0,0,0): threads 0-95 wait at setmaxnreg_decrease (@decrease); '
  . 'threads 96-127 have returned; '
  . 'threads 128-383 wait at setmaxnreg_increase (@more) for 64 more registers per thread: 8192 in all, but only 0 are free';
says too_much_used =>
  'kernel too_much_used, block (0,0,0), thread 0: uses 4096 bytes of shared memory, but the launch requested 4095 (@used)';
says too_much_asked  => 'kernel empty: 232449 bytes of shared memory per block; the device has 232448 (@asked)', 2;
says block_too_large => 'kernel empty: a block of 64x17x1 threads; choose 1 to 1024, and at most 64 in z (@block)', 2;
says empty_grid      => 'kernel empty: a grid of 1x0x1 blocks; choose 1 to 2147483647 in x, and 1 to 65535 in y and z (@grid)', 2;

# An address that is nobody's: exit code 2, as on a GPU. The host's own fault stays a fault.
my $outside = "kernel outside, $bad, thread 9: 0x... is in no tensor; it would be byte";
says behind        => "$outside 4096 of the nearest, memory, which has 4096",        2;
says far_behind    => "$outside 1000000 of the nearest, memory, which has 4096",     2;
says far_away      => "kernel outside, $bad, thread 9: 0x... is in no tensor, and not near one", 2;
says before        => "$outside -1 of the nearest, memory, which has 4096",          2;
says behind_shared => "$outside 4096 of the nearest, shared memory, which has 4096", 2;
says null          => "kernel null_pointer, $bad, thread 9: the pointer is NULL, misaligned, or not an address", 2;
says deep          => "kernel deep, $bad, thread 9: its stack is full", 2;
is_deeply [run('host')], ['signal 11', ''], 'a fault of the host';

# Whoever comes first decides what is said.
for ([too_many_registers => "kernel registers, block (0,0,0): no thread can continue\n    threads 0-255 have returned\n    "
      . "threads 256-383 wait at setmaxnreg_increase ($source:$line{increase}) for 72 more registers per thread: 9216 in all, but "
      . "only 7168 are free\n"],
    [named_disagree => "kernel named, block (0,0,0), thread 32: named_barrier_sync: barrier 3 for 64 threads; the thread that "
      . "arrived first said 96 ($source:$line{named})\n"]) {
    my ($case, $want) = @$_;
    my ($code, $text) = run($case, CPU_DEVICE_ORDER => 'forward');
    is $text, $want, "$case: the message";
    is $code, 1, "$case: exit code 1";
}

# Whichever lane runs first, or last, is the one that complains.
for ([small_block => 'kernel mma_in_a_small_block, block (0,0,0), thread N: mma_m16n8k16 needs all 32 lanes; this warp has 20 '
      . "($source:$line{small})\n"],
    [wgmma_by_some => "kernel wgmma_by_some, block (0,0,0), thread N: wgmma_m64n64k32: 96 of the warpgroup's 128 threads have "
      . "reached it ($source:$line{by_some})\n"],
    [grown_smaller => "kernel registers, block (0,0,0), thread N: setmaxnreg_increase to 160: the thread has 168 registers "
      . "($source:$line{smaller})\n"],
    [named_none => "kernel named, block (0,0,0), thread N: named_barrier_sync: barrier 16; choose 1 to 15 ($source:$line{named})\n"],
    [off_pattern => "kernel hopper, $bad, thread N: wgmma: a matrix begins at 128, outside the first of the swizzle's 8 rows, which is "
      . "at a multiple of 512 bytes ($source:$line{wgmma})\n"],
    (map { [$_->[0] => "kernel unnamed, block (0,0,0), thread N: wgmma: no wgmma_fence since the last wgmma_wait named the registers of its "
      . "$_->[1] ($source:$line{unnamed})\n"] } [without_d => 'D'], [without_a => 'A'], [before_wait => 'D']),
    [no_fence => "kernel hopper, $bad, thread N: wgmma without a wgmma_fence since the last wgmma_wait ($source:$line{wgmma})\n"]) {
    my ($case, $want) = @$_;
    for my $order (qw(forward reverse shuffle)) {
        my ($code, $text) = run($case, CPU_DEVICE_ORDER => $order);
        $text =~ s/thread \d+/thread N/;
        is $text, $want, "$case, $order: the message";
        is $code, 1, "$case, $order: exit code 1";
    }
}

# A dtype that does not exist, or that a kernel does not take, is none of the others: nothing runs.
is_deeply [run($_)], [0, ''], $_ for 'with_any_type', 'with_half_type';

# Bad settings: one line that says what may be set, exit code 2.
for ([CPU_DEVICE_ORDER => 'sideways', 'choose forward, reverse, shuffle or none'],
    [CPU_DEVICE_ORDER => '', 'choose forward, reverse, shuffle or none'],
    [CPU_DEVICE_THREADS => 'many', 'choose 1 to 1024'], [CPU_DEVICE_THREADS => 0, 'choose 1 to 1024'],
    [CPU_DEVICE_THREADS => '2x', 'choose 1 to 1024']) {
    my ($name, $value, $advice) = @$_;
    my ($code, $text) = run('nothing', $name => $value);
    is $text, "$name=$value: $advice\n", "$name=$value: the message";
    is $code, 2, "$name=$value: exit code 2";
}
is_deeply [run('nothing')], [0, ''], 'a kernel without mistakes says nothing';

done_testing;
