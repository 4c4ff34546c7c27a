#!/usr/bin/env perl
# stages.t - what all stages print alike: lines of 120 places, the same fields, what a GPU would do, how long a run will take.
use strict;
use warnings;
use utf8;
use File::Temp qw(tempdir);
use Test::More;
use JSON::PP;
use Scalar::Util qw(looks_like_number);
use lib 'tests';
use Program;
binmode(Test::More->builder->$_, ':utf8') for qw(output failure_output);

my @small = ('--batch', 2, '--heads', 2, '--seqlen', 40, '--seqlen-k', 56, '--head-dim', 64, '--iters', 2);
my $on_gpu = ($ENV{TEST_DEVICE} // 'cpu') eq 'cuda';

# ---- lines for a terminal: 120 places, plain ASCII where the locale has no more, no escapes where there is no terminal
for my $stage (grep { -x "$_/$_" } stages()) {
    for my $options ([], ['--help'], $stage =~ /^07/ ? ['--kv-cache', 'e4m3'] : ['--mask', 'causal,full', '--seqlen', 64, '--lengths', 33]) {
        local $ENV{LC_ALL} = 'C';
        my $run = run($stage, '--iters', 1, @$options);
        my @long = grep { length > 120 } split /\n/, $run->{out};
        ok($run->{code} =~ /^[02]$/ && !@long, "$stage @$options: lines of at most 120 characters") or diag($run->{err}, join "\n", @long);
        unlike($run->{out} . $run->{err}, qr/[^\n\x20-\x7e]/, "$stage @$options: plain ASCII under LC_ALL=C");
        like($run->{out}, qr/\n\z/, "$stage @$options: ends in a newline");
    }
}

# ---- the same names in the same order in every stage, and values of the same types: so rows of several stages go into one file
my %headings = map { (run($_, @small, '--csv', '--seqlen', 8, '--no-validate')->{out} =~ /\A(.*)\n/)[0] => 1 } stages();
is(scalar keys %headings, 1, 'CSV: one header for all stages'); # run.t has its names
my @fields = split /,/, (keys %headings)[0];
for my $stage (stages()) {
    for my $row (split /\n/, run($stage, @small, '--json', '--seqlen', 8, '--iters', 4, '--lengths', '9,50')->{out}) {
        my @names = $row =~ /"(\w+)": /g;
        is("@names", "@fields", "$stage: JSON has them in the same order");
        my %value = %{decode_json($row)};
        my @texts = grep { defined $value{$_} && !looks_like_number($value{$_}) && !ref $value{$_} } @fields;
        my @wrong = grep { !/^(stage|variant|direction|dtype|lengths|settings|inputs|l2|device|cuda|commit|note)$/ } @texts;
        is("@wrong", '', "$stage: and text only where every stage has text");
        is($value{lengths}, '9;50', "$stage: key lengths");
    }
}

# ---- what a GPU would do: where no shape is given, on the one that it takes. Blocks as in the notes: a head each; 32, 64, 128 queries
SKIP: {
    skip 'a GPU has what it takes', 3 if $on_gpu;
    my @options = qw(--iters 1 --no-validate --json);
    my %row = map { my $row = decode_json($_); ($row->{variant} => $row) } map { split /\n/, run($_, @options)->{out} } '03_fa1', '04_fa2';
    is(join(' ', map { "$_ $row{$_}{gpu_blocks}" } sort keys %row), '03_fa1/fa1 64 03_fa1/fma 64 04_fa2/epilogue 64 04_fa2/fma 8192 '
        . '04_fa2/loop_swap 8192 04_fa2/split_q 4096 04_fa2/tuned 2048', 'blocks of the grid at batch 4, heads 16, seqlen 4096');
    # Q, O and LSE once, K and V for each tile of 64 queries
    my $bytes = 4 * 16 * 4096 * (2 * 128 * 2 + 4) + 4 * 16 * 2 * 4096 / 64 * 4096 * 128 * 2;
    ok($row{'04_fa2/split_q'}{gpu_bytes} == $bytes && abs($row{'04_fa2/split_q'}{gpu_flops_per_byte} * $bytes / (4 * 4 * 16 * 4096**2 * 128) - 1) < 1e-6,
        'bytes of split_q, and FLOPs for each');
    my ($own) = map { decode_json($_) } run('04_fa2', @options, '--variant', 'split_q', '--seqlen', 65)->{out};
    is("$own->{gpu_blocks} $own->{seqlen_q}", '4 65', 'and a shape that is given is taken');
}

# ---- on the CPU device a problem for a GPU says how long it will take, before anything else; then nobody waits for it
SKIP: {
    skip 'a GPU is fast', 2 if $on_gpu;
    my @words = qw(--batch 1 --heads 4 --seqlen 65536 --head-dim 128 --variant tuned --no-validate);
    my $child = open(my $said, '-|') // die "fork: $!";
    if (!$child) {
        open(STDERR, '>&', \*STDOUT);
        exec('04_fa2/04_fa2', @words);
    }
    my ($first, $second) = (scalar(<$said>), scalar(<$said>));
    kill 'KILL', $child;
    close $said;
    like($first, qr/^04_fa2: this will take about \d+ (seconds|minutes|hours): the CPU device simulates every thread of a GPU$/, 'a long run says so');
    like($second, qr/^device /, 'before it starts');
}
done_testing;
