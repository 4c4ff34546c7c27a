#!/usr/bin/env perl
# trace.t - the real kernels under the trace: bytes against the formulas, S where it belongs, no races.
#
#     make test-trace
#
# A stage whose table has no formula (Variant.predict) yet shows up as TODO.
use strict;
use warnings;
use Test::More;
use lib 'tests';
use Program;

my $build = $ENV{TEST_BUILD} || 'build/cpu-trace';
my @stages = grep { -x "$build/$_/$_" } stages();
ok(@stages > 0, "stages: @stages");

# Whole tiles; odd everything; causal both ways; keys that do not exist; grouped heads, a wide head.
my @shapes = (
    '--heads 1 --seqlen 128 --seqlen-k 256',
    '--heads 1 --seqlen 130 --seqlen-k 213 --causal --batch 2',
    '--heads 1 --seqlen 300 --seqlen-k 100 --causal --dtype bf16',
    '--heads 2 --kv-heads 1 --seqlen 65 --head-dim 128 --batch 3 --lengths 65,0,17',
);

# The same for few queries.
my @decoding_shapes = (
    '--heads 1 --seqlen 1 --seqlen-k 1000',
    '--heads 4 --kv-heads 2 --seqlen 3 --seqlen-k 333 --causal --batch 2',
    '--heads 8 --kv-heads 2 --seqlen 16 --seqlen-k 700 --causal --dtype bf16',
    '--heads 4 --kv-heads 2 --seqlen 2 --seqlen-k 300 --head-dim 128 --batch 3 --lengths 300,0,17',
    '--heads 2 --seqlen 2 --seqlen-k 260 --dtype fp32',
);

# The head dims that not every variant takes; what a stage's own options change.
my %more_shapes = (
    '01_tiled' => ['--heads 1 --seqlen 70 --seqlen-k 100 --head-dim 40'],
    '04_fa2' => ['--heads 2 --kv-heads 1 --seqlen 70 --seqlen-k 150 --causal --dtype fp32', map { "--heads 2 --kv-heads 1 --seqlen 70 --seqlen-k 150 --causal --head-dim $_ --batch 2 --lengths 150,31" } 32, 96, 256],
    '05_fa2_backward' => ['--heads 2 --kv-heads 1 --seqlen 70 --seqlen-k 150 --causal --dtype fp32',
        "$shapes[2] --variant 00_naive", # and smaller tiles, as far as there is room for the forward pass
        "CPU_DEVICE_SHARED=81920 $shapes[1]", map { "CPU_DEVICE_SHARED=$_ $shapes[3]" } 98304, 101376],
    '06_fp8' => ['--heads 2 --seqlen 200 --seqlen-k 333 --causal --hadamard --smooth-k --scaling block',
        '--heads 1 --seqlen 70 --seqlen-k 300 --head-dim 128 --format e5m2 --smooth-k',
        '--heads 45 --seqlen 70 --seqlen-k 80 --causal --roofline t4 --variant overlapped'], # blocks with several query tiles
    '07_flash_decoding' => ['--heads 4 --kv-heads 2 --seqlen 3 --seqlen-k 333 --causal --batch 2 --splits 3',
        (map { "CPU_DEVICE_SHARED=$_ $decoding_shapes[2]" } 65536, 101376),
        '--heads 8 --kv-heads 2 --seqlen 16 --seqlen-k 700 --causal --dtype bf16 --split-size 200', '--heads 12 --kv-heads 1 --seqlen 3 --seqlen-k 333 --causal --batch 2',
        '--heads 4 --kv-heads 2 --seqlen 1 --seqlen-k 500 --batch 2 --lengths 500,77 --kv-cache e4m3',
        (map { "--heads 4 --kv-heads 2 --seqlen 1 --seqlen-k 500 --batch 3 --lengths 500,0,77 --page-size $_" } '16', '64 --head-dim 128', '128 --dtype fp32')],
    '10_block_sparse' => [map { "--heads 2 --kv-heads 1 --seqlen 200 --seqlen-k 300 --batch 2 --lengths 300,150 $_" } '--blocks window:100 --head-dim 128',
        '--causal --blocks sink:3:40', '--blocks documents:80+150+70', '--causal --blocks strided:3 --head-dim 128', '--blocks random:40:1'],
    '09_fa3_backward' => ['--heads 3 --kv-heads 1 --seqlen 300 --seqlen-k 100', # a last wave, cut into pieces
        '--heads 6 --kv-heads 3 --seqlen 300 --seqlen-k 280 --head-dim 128 --batch 2 --lengths 280,100', '--heads 4 --kv-heads 1 --seqlen 200 --seqlen-k 300 --causal'],
    '11_score_mod' => [map { "--heads 2 --kv-heads 1 --seqlen 200 --seqlen-k 300 --batch 2 --lengths 300,150 --score $_" } 'window:40,0', 'sink --head-dim 128',
        'softcap:3+window:100,30+sink --causal', 'alibi'],
    '11_score_mod_backward' => ['--heads 2 --seqlen 200 --seqlen-k 300 --score window:40,10', '--heads 2 --kv-heads 1 --seqlen 70 --batch 2 --causal --score sink+softcap:3 --dtype fp32',
        "$shapes[2] --variant 00_naive --score sink+window:10,3"],
    (map { $_ => ['--heads 2 --kv-heads 1 --seqlen 70 --seqlen-k 90 --causal --batch 2 --lengths 90,41 --devices 8',
        '--heads 2 --seqlen 100 --causal --head-dim 128 --devices 3 --chunks contiguous']} '12_context_parallel', '12_context_parallel_backward'),
    '08_fa3' => ['--heads 45 --seqlen 70 --seqlen-k 80 --causal --roofline t4'], # blocks with several query tiles
);
my %stores_scores = ('00_naive' => 1, '01_tiled' => 1); # all others keep S to themselves

my %predicted;    # by variant
my $taken = 0; # a third of them, but with TEST_ALL
for my $stage (@stages) {
    for my $shape (kind_of($stage) eq 'DECODING' ? @decoding_shapes : @shapes, @{$more_shapes{$stage} // []}) {
        next if $taken++ % 3 != 1 && !$ENV{TEST_ALL};
        my ($code, @rows) = trace($stage, $shape);
        is($code, 0, "$stage $shape: exit code");
        my @races = grep { /"race"/ } @rows;
        ok(!@races, "$stage $shape: no race") or diag(@races);
        my %seen;
        for my $row (grep { /"tensor"/ } @rows) {
            my ($variant, $kernel, $tensor) = map { value($row, $_) } qw(variant kernel tensor);
            my ($read, $written) = map { value($row, $_) } qw(bytes_read bytes_written);
            next if $tensor =~ /^(key lengths|block mask)$/;
            my ($formula_read, $formula_written) = map { value($row, $_) } qw(formula_read formula_written);
            push @{$seen{$variant}}, [$tensor, $read + $written];
            local $TODO = 'the stage has no formula yet' unless defined $formula_read || $predicted{$variant};
            $predicted{$variant} ||= defined $formula_read;
            is("$read $written", join(' ', map { $_ // 'nothing' } $formula_read, $formula_written),
                "$variant $shape: bytes of $tensor in $kernel");
        }
        for my $variant (sort keys %seen) {
            my $has_scores = grep { $_->[0] eq 'S' && $_->[1] > 0 } @{$seen{$variant}};
            is($has_scores > 0 ? 1 : 0, $stores_scores{$stage} // 0, "$variant $shape: S in device memory or not");
        }
    }
}

done_testing;

sub trace {
    my ($stage, $options) = @_;
    my $environment = $options =~ s/^(CPU_\w+=\d+) // ? $1 : '';
    my @rows = `$environment $build/$stage/$stage --trace --json $options`;
    return ($? >> 8, @rows);
}
sub value { my ($row, $name) = @_; return $row =~ /"$name": (?|"([^"]*)"|([^,}]*))/ ? $1 : undef }
