#!/usr/bin/env perl
# small_shared.t - chips with less shared memory than Hopper: CPU_DEVICE_SHARED says how much a block can have, a launch that
# asks for more is refused as on a GPU, and the stages that choose their tiles by it go through the grid with less.
use strict;
use warnings;
use Test::More;
use lib 'tests';
use Program;

my $build = $ENV{TEST_BUILD} || 'build/cpu';
plan skip_all => 'for the CPU device' if ($ENV{TEST_DEVICE} // 'cpu') ne 'cpu';
my @errors = `CPU_DEVICE_SHARED=1000 $build/01_tiled/01_tiled 2>&1`;
is(scalar @errors, 1, 'CPU_DEVICE_SHARED: one line for a value out of range');
like($errors[0], qr/CPU_DEVICE_SHARED=1000: choose/, 'which names it');

# Tiles of D = 128 need 64 KiB and more; these kernels choose by the compute capability, which is sm_80's here.
my $refused = `CPU_DEVICE_SHARED=49152 $build/04_fa2/04_fa2 --seqlen 16 --head-dim 128 --variant tuned --no-validate 2>&1`;
is($? >> 8, 2, 'a launch that asks for more shared memory than the device has is refused');
like($refused, qr/^kernel .*: \d+ bytes of shared memory per block; the device has 49152 /m, 'and the message has both figures');

# Those that ask how much there is. 65536 bytes are sm_75's, 101376 those of sm_86 and sm_89.
my @stages = stages();
my %chooses = map { $_ => scalar grep { /device_properties\(\)->shared_bytes/ } source(glob "$_/*.{c,h,cu,cuh}") } @stages;
ok(2 <= grep({ $_ } values %chooses), 'stages that choose by it: ' . join ' ', grep { $chooses{$_} } @stages);
for my $stage (grep { $chooses{$_} } @stages) {
    for my $bytes (65536, 101376) {
        my $output = `CPU_DEVICE_SHARED=$bytes GRID_EVERY=16 $build/tests/grid_$stage --quick 2>&1`;
        is($?, 0, "$stage with $bytes bytes") or diag($output);
    }
}

# Where not even the smallest tiles fit, the lists of tiles end in an error.
for my $variant ('two_pass', 'atomic') {
    my $output = `CPU_DEVICE_SHARED=49152 GRID_EVERY=200 $build/tests/grid_05_fa2_backward --quick --variant $variant 2>&1 >/dev/null`;
    is($? >> 8, 2, "05_fa2_backward/$variant with 49152 bytes ends with 2");
    like($output, qr/^.*dK and dV, head dim 64: the smallest tiles need more shared memory than the 49152 bytes .*\n\z/, 'and one line');
}

# All others must fit into what every chip from sm_80 on has; what is made for Hopper says that it does not run there, and a
# stage that has nothing else ends with 2.
for my $stage (grep { !$chooses{$_} } @stages) {
    my $table = source("$stage/main.c");
    my $rows = $table =~ /\.variants = (.*)/s ? $1 : '';
    my ($variants, $for_hopper) = map { scalar(() = $rows =~ /$_/g) } '\.launch = ', '\bWGMMA\b';
    my $none = $table =~ /^static const Variant forward = (?:(?!^\};).)*\bWGMMA\b/ms && $table !~ /\.forward_otherwise/; # nothing runs behind a forward pass that does not
    for my $dim (64, 128) {
        my $output = `CPU_DEVICE_SHARED=101376 $build/$stage/$stage --seqlen 20 --head-dim $dim --no-validate --iters 1 2>&1`;
        is($? >> 8, $none || ($variants && $variants == $for_hopper) ? 2 : 0, "$stage, head dim $dim, with 101376 bytes") or diag($output);
        is(() = $output =~ /not run: needs a Hopper GPU/g, $for_hopper, "of which $for_hopper variants are Hopper's") if !$none;
    }
}
done_testing;

sub source {
    local @ARGV = @_;
    return join '', <>;
}
