#!/usr/bin/env perl
# small_shared.t - the tile shapes that kernels choose on chips with less shared memory than Hopper: the grid once more, with
# the CPU device said to have as much as sm_75 and as sm_86.
use strict;
use warnings;
use Test::More;

my $build = $ENV{TEST_BUILD} || 'build/cpu';
plan skip_all => 'for the CPU device' if ($ENV{TEST_DEVICE} // 'cpu') ne 'cpu';
my @errors = `CPU_DEVICE_SHARED=1000 01_tiled/01_tiled 2>&1`;
is(scalar @errors, 1, 'CPU_DEVICE_SHARED: one line for a value out of range');
like($errors[0], qr/CPU_DEVICE_SHARED=1000: choose/, 'which names it');
for my $bytes (65536, 101376) {
    my $output = `CPU_DEVICE_SHARED=$bytes $build/tests/grid_05_fa2_backward --quick 2>&1`;
    is($?, 0, "05_fa2_backward with $bytes bytes") or diag($output);
}
done_testing;
