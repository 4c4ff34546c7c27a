#!/usr/bin/env perl
# trace_output.t - what the trace prints: make trace's table, lines for people, what is wrong marked, errors; FLOPs counted by hand.
#
#     make test-trace
use strict;
use warnings;
use Cwd 'getcwd';
use Test::More;
use lib 'tests';
use Program;
use Scratch;

my $build = $ENV{TEST_BUILD} || 'build/cpu-trace';
my @stages = grep { -x "$build/$_/$_" } stages();
ok(@stages > 0, "stages: @stages");

# The table in notes/trace.md is what make trace prints. `make test-all` looks.
if ($ENV{TEST_ALL}) {
    write_file("$build/rows.json", join '', map { scalar `$build/$_/$_ --trace --json --heads 1 --seqlen 512` } @stages);
    my $table = `awk -f common/classroom/rows.awk -f common/classroom/trace_table.awk $build/rows.json` =~ s/ +$//gmr;
    my %now = map { /^(\S+)/ ? ($1 => $_) : () } split /^/, $table;
    my @printed = grep { /^\d+_\w+(\/\w+)? +\d+ +\d+ +\d+ / } split /^/, read_file('notes/trace.md');
    ok(@printed >= 10, 'notes/trace.md has the table');
    is($_, $now{(split)[0]}, 'notes/trace.md: ' . (split)[0]) for @printed;
}

# The kernel whose lines notes/trace.md explains.
{
    my ($options, $shown) = read_file('notes/trace.md') =~ /^The last kernel of `make trace-01_tiled TRACE_OPTIONS="(.*?)"`.*?^```\n(.*?)^```/ms;
    my $printed = `$build/01_tiled/01_tiled --trace $options` =~ s/\n {8,}/ /gr =~ s/ +$//gmr;
    ok($shown && index($printed, $shown) > 0, 'notes/trace.md: its kernel, line by line') or diag($printed);
}

# make trace: the decoding stage at its own shape, in several pieces; a program that fails is named, and make fails.
my @make = ('env', '-u', 'MAKEFLAGS', 'make', '--no-print-directory', 'DEVICE=cpu', 'TRACE=1', "OUT=$build");
my @table = made('trace', 'TRACE_OPTIONS=--heads 1 --seqlen 16');
is($? >> 8, 0, 'make trace');
my %variant = map { /^(\d\d_\w+\/\w+) +\d/ ? ($1 => 1) : () } @table;
ok($variant{"07_flash_decoding/$_"}, "with 07_flash_decoding/$_") for 'one_block', 'split_k', 'equal_shares';
ok(!(grep { length > 121 } @table), 'lines of at most 120 characters') or diag(@table);
my ($pieces) = join('', made('trace-07_flash_decoding')) =~ /^split_k   (\d+) blocks/m;
cmp_ok($pieces // 0, '>', 2, 'make trace-07_flash_decoding: split_k splits');

@table = made('trace', 'TRACE_OPTIONS=--heads 1 --seqlen 16 --head-dim 72');
is($? >> 8, 2, 'make trace where a program fails: so does make');
like(join('', @table), qr/^00_naive .* 0\n.*^04_fa2 +exit code 2: no variant can run this problem here$/ms, 'which is a line of the table');

# A wrong option is told once, for all the programs that take it.
for (['trace', 'trace'], ['watch-04_fa2', '04_fa2']) {
    my ($target, $name) = @$_;
    my @said = grep { !/^make/ } split /^/, `@make $target TRACE_OPTIONS=--nope 2>&1`;
    like($said[-1] // '', qr/^\w+: --nope: no such option; --help lists them$/, "make $target TRACE_OPTIONS=--nope: why");
    is(scalar(grep { /no such option/ } @said), 1, 'once') or diag(@said);
    cmp_ok(scalar @said, '<=', 2, 'and nothing else but the options');
}

# A folder may have any name: no shell reads it.
{
    my $folder = "@{[getcwd]}/$build/a student's \$folder";
    my $line = sub { return (`'@{[$_[0] =~ s/'/'\\''/gr]}' --trace --heads 1 --seqlen 16 2>&1` =~ /(naive\.cu:\d+ \(.*\))/)[0] // 'none' };
    mkdir $folder;
    system('cp', "$build/00_naive/00_naive", "$build/00_naive/00_naive.code", $folder) == 0 or die "$folder: $!";
    is($line->("$folder/00_naive"), $line->("$build/00_naive/00_naive"), 'source lines of a program in a folder with an apostrophe');
    unlink glob "'$folder'/*";
    system('rm', '-r', $folder);
}

for my $stage (@stages) {
    my @lines = `$build/$stage/$stage --trace @{[kind_of($stage) eq 'DECODING' ? '' : '--heads 1 --seqlen 64']}`;
    ok(@lines > 10 && !(grep { length > 121 || /[^\n\x20-\x7e]/ } @lines), "$stage --trace: plain lines of at most 120 characters") or diag(@lines);
}

# What is wrong is marked, by exit code 1 too: a formula that is not what was counted, a race.
{
    local $ENV{JOBS} = 1;
    my $wrong = sub { my ($file, $from, $to, $marked) = @{$_[0]};
        return with_file($file, read_file($file) =~ s/\Q$from\E/$to/r, sub {
            my ($built, $log) = built("$build/01_tiled/01_tiled", 'TRACE=1');
            my $printed = `$build/01_tiled/01_tiled --trace --heads 1 --seqlen 128 2>&1`;
            my @seen = (["planted in $file: exit code 1", $? >> 8 == 1, $log], ["... and marked", $printed =~ $marked, $printed]);
            return @seen if $file =~ /traffic/;
            ($built, my $table) = built('trace', 'TRACE=1', "TRACE_OPTIONS='--heads 1 --seqlen 64'");
            return @seen, ['... make trace fails', !$built && $table =~ /^01_tiled +exit code 1(?:: .+)?$/m, $table];
        });
    };
    from_copies($build, $wrong, sub { ok($_->[1], $_->[0]) or diag($_->[2]) for @_ },
        ['01_tiled/traffic.c', 'column_tiles * query_bytes', '64 * column_tiles * query_bytes',
            qr/^  Q +32768 +!= 2097152 .*^01_tiled\/fma: Q in fma_scores: 32768 bytes read, 0 written; by its formula 2097152 and 0$/ms],
        !$ENV{TEST_ALL} ? () : ['01_tiled/traffic.c', '"LSE", 0', '"lse", 0', qr/^01_tiled\/fma: lse in tiled_softmax: 0 bytes read, 0 written; by its formula 0 and 512$/m],
        ['01_tiled/fma.cu', '__syncthreads(); /* and is', '/* and is', qr/^RACE in fma_scores/m]);
}

# Sums over rows: a field's value is matched whole.
write_file("$build/rows.json", join '', map { qq({"variant": "x", "tensor": "$_->[0]", "bytes": $_->[1]}\n) } ['K', 1], ['K8', 10], ['dK', 100], ['Q', 1000]);
write_file("$build/sums.awk", 'END { print sum("bytes", "variant=x, tensor=K"), sum("bytes", "tensor=[QK]"), count("tensor=.*") }');
is(`awk -f common/classroom/rows.awk -f $build/sums.awk $build/rows.json`, "1 1001 4\n", 'rows.awk: K is neither K8 nor dK');

# Two lines for people, and the errors.
my $text = `$build/$stages[0]/$stages[0] --trace --heads 1 --seqlen 64 --roofline a100`;
like($text, qr/a100: memory limits it to [\d.]+ of 312 TFLOP/, '--roofline a100');
$text = `$build/06_fp8/06_fp8 --trace --heads 1 --seqlen 64 --variant wgmma --format e4m3`;
like($text, qr/ of 1979 TFLOP/, '8 bits have a roof of their own');
$text = `$build/08_fa3/08_fa3 --trace --heads 1 --seqlen 64 --variant wgmma`;
like($text, qr/ of 990 TFLOP/, 'and fp16 has not');
my $nothing = `$build/04_fa2/04_fa2 --trace --heads 1 --seqlen 64 --head-dim 72 2>&1 >/dev/null`;
is($? >> 8, 2, 'nothing to trace: exit code 2');
like($nothing, qr/^04_fa2\/tuned: not traced: takes head dim .*\n.*04_fa2: no variant can run this problem here\n\z/ms, 'and a line');
like(`$build/01_tiled/01_tiled --trace --heads 1 --seqlen 64 2>&1 >/dev/full`, qr/^01_tiled: the output cannot be written: .*\n\z/, 'nor to say');
is($? >> 8, 2, 'likewise');
$nothing = `$build/04_fa2/04_fa2 --trace --heads 1 --seqlen 64 --head-dim 72,64 2>/dev/null`;
is($? >> 8, 2, 'nothing to trace in one of two problems: likewise');
like($nothing, qr/^04_fa2\/split_q .*head_dim 64.*^2 problems: 1 good, 0 bad, 1 not run or not checked\n\z/ms, 'but in the other');
my $error = `$build/$stages[0]/$stages[0] --trace --roofline b52 2>&1`;
is($? >> 8, 2, 'an unknown chip: exit code 2');
like($error, qr/--roofline b52: choose .*h200/, 'and a line that names the chips');
is(`$build/01_tiled/01_tiled --trace --csv 2>&1`, "01_tiled: --csv and --trace: choose one\n", 'no CSV');
is($? >> 8, 2, 'likewise');
like(`$build/01_tiled/01_tiled --trace --json --seqlen 8,9 2>&1`, qr/^01_tiled: .*--trace --json: choose one value .*\n\z/, 'one problem');
is($? >> 8, 2, 'likewise');

# ---- FLOPs of CUDA cores, counted by hand: two tiles of queries by two of keys ----

if (-x "$build/04_fa2/04_fa2") {
    my ($N, $D, $threads, $rows) = (64, 64, 128, 4); # a thread's rows
    my @rows = `$build/04_fa2/04_fa2 --trace --json --heads 1 --seqlen $N --variant fma`;
    my ($flops) = map { /"cuda_flops": (\d+)/ } @rows;
    is($flops, 4 * $N * $N * $D # Q K^T and P V
        + 3 * $N * $N # scaled, the maximum subtracted, summed
        + 4 * $threads * $rows * (1 + 4 + 2 * $D / 16 + 2) # each row's alpha, sum over 16 threads, O rescaled and P V added, and l, at each tile
        + 2 * $threads * $rows * (1 + $D / 16) + $N, '04_fa2/fma: FLOPs of CUDA cores'); # the division, at last; LSE
}

# What runs beside a wgmma: in 08_fa3/overlapped a tile's softmax while the next product runs, for all tiles but the last; in
# specialised, which waits for each product, nothing of a warpgroup's own.
{
    my ($tile, $keys) = (128, 1024); # keys
    my %beside = map { /"kernel": "(\w+)".*"exponentials": (\d+), "exponentials_beside_wgmma": (\d+)/ ? ($1 => [$3, $2]) : () }
        `$build/08_fa3/08_fa3 --trace --json --heads 1 --seqlen 128 --seqlen-k $keys --head-dim 64`;
    is($beside{specialised}[0], 0, '08_fa3/specialised: no exponentials beside a product');
    is($beside{overlapped}[0], 128 * ($keys - $tile), '08_fa3/overlapped: all but those of the last tile');
}

done_testing;

sub made { return `@make '@{[join "' '", @_]}' 2>/dev/null` }
