#!/usr/bin/env perl
# watch.t - the page of make watch-<stage>: what it shows is what the trace counts, and it works in a browser.
#
#     make test-trace
#
# The recorded data come line by line and step by step; added up they must be the rows of --trace --json of the same run. A headless
# Chromium, where there is one, opens each page, goes through it step by step, and the numbers that then stand there are compared. With
# TEST_ALL=1 every stage, else three, and a page of the first.
use strict;
use utf8;
use warnings;
use File::Temp qw(tempdir);
use JSON::PP;
use List::Util qw(max min uniq);
use POSIX qw(ceil);
use Test::More;
use lib 'tests';
use Program;
use Scratch qw(read_file write_file);

my $build = $ENV{TEST_BUILD} || 'build/cpu-trace';
my $scratch = tempdir(CLEANUP => 1);
my ($chromium) = grep { -x } map { my $name = $_; map { "$_/$name" } split /:/, $ENV{PATH} } qw(chromium chromium-browser google-chrome);
my %options = (
    '00_naive' => ['--heads 1 --seqlen 128', '--heads 2 --seqlen 40 --seqlen-k 100 --causal'],
    '03_fa1' => ['--heads 1 --seqlen 64 --seqlen-k 96 --variant fma', '--heads 1 --seqlen 256 --variant fa1', '--heads 2 --kv-heads 1 --seqlen 130 --seqlen-k 213 --causal --batch 2'],
    '04_fa2' => ['--heads 1 --seqlen 200 --causal', '--heads 1 --seqlen 130 --seqlen-k 300 --batch 2 --lengths 300,77'],
    '05_fa2_backward' => ['--heads 2 --kv-heads 1 --seqlen 128', '--heads 1 --seqlen 100 --seqlen-k 150 --causal'],
    '06_fp8' => ['--heads 1 --seqlen 200 --seqlen-k 300 --causal'],
    '07_flash_decoding' => ['--heads 4 --kv-heads 2 --seqlen-k 512', '--heads 8 --kv-heads 2 --seqlen 3 --seqlen-k 333 --causal --batch 2'],
    '08_fa3' => ['--heads 1 --seqlen 256'],
    '09_fa3_backward' => ['--heads 2 --kv-heads 1 --seqlen 128 --seqlen-k 200'],
    '11_score_mod' => ['--heads 2 --kv-heads 1 --seqlen 200 --score softcap:3'],
    '10_block_sparse' => ['--heads 2 --kv-heads 1 --seqlen 300 --batch 2 --lengths 300,200 --blocks window:100'],
);

# What the counts of a variant are called: in the trace's rows, and here.
my @pairs = (['bytes', 'read'], ['bytes', 'written'], ['sectors', 'read'], ['sectors', 'written'], ['wavefronts', 'read'],
    ['wavefronts', 'written'], ['ideal', 'read'], ['ideal', 'written'], ['requests', 'read'], ['requests', 'written']);

my $planted;
for my $stage (grep { -x "$build/$_/$_" && ($ENV{TEST_ALL} || /^(00|05|10)/) } sort keys %options) {
    my $number = 0;
    for my $shape (@{$options{$stage}}[0 .. ($ENV{TEST_ALL} ? $#{$options{$stage}} : 0)]) {
        my $file = "$scratch/$stage." . $number++;
        my @rows = map { decode_json($_) } `$build/$stage/$stage --watch $file.json --json $shape`;
        is($? >> 8, 0, "$stage $shape: exit code");
        my $data = decode_json(read_file("$file.json"));
        my $traced = traced(@rows);
        is_deeply(by_lines($data), $traced->{kernels}, '... its lines add up to the rows of the trace');
        is_deeply(by_steps($data), $traced->{variants}, '... and so do its steps');
        is_deeply([uncovered($data)], [], '... each query meets each key that it sees');
        is_deeply([beyond($data)], [], '... no row beyond a tensor');
        is_deeply([collisions($data)], [], '... one step at a time on a multiprocessor, one launch after the other');
        next if $planted && !$ENV{TEST_ALL};
        my ($page, $program) = ("$file.html", "$build/$stage/$stage");
        if ($planted) { # not the first page: a program that says once more what the stage's has just said
            write_file($program = "$scratch/$stage", "#!/bin/sh\ncp $file.json \$2\n");
            chmod 0755, $program;
        }
        is(system("sh common/classroom/watch.sh $page '$shape' $program >/dev/null") >> 8, 0, '... a page of it');
        cmp_ok(-s $page, '<', 5e6, '... of less than 5 MB');
        unlike(read_file($page) =~ s/<script type="application\/json".*?<\/script>//sr, qr/https?:/, '... that needs no network');
        my %ideas = ('00_naive' => 'the definition: one thread per output, S and P in device memory', `$build/$stage/$stage --help` =~ /^  ([a-z]\w*) +(\S.*)$/mg); # --help says another thing of naive
        my @ideas = map { "$_->{name}: " . $ideas{$_->{name} =~ s{.*/}{}r} } @{$data->{variants}};
        looks_right($page, $data, $traced, \@ideas, without_place($data), '... in Chromium');
        $planted //= [$data, $traced, $page];
    }
}

# ---- skipped, and too much ----

my $file = "$scratch/more.json";
system("$build/04_fa2/04_fa2 --watch $file --json --heads 1 --seqlen 512 --causal --variant split_q >/dev/null");
is(multiplied(decode_json(read_file($file)), 'K'), 64 * 64 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8), 'split_q skips the tiles beyond the diagonal');
like(`$build/00_naive/00_naive --watch $file --json --heads 9 --seqlen 512 --head-dim 8 2>&1 >/dev/null`,
    qr/^00_naive: --watch: \w+ takes 9216 steps, but a page shows only 8192: choose a smaller problem\n\z/, 'a run that is too long');
is($? >> 8, 2, '... exit code 2');

my $blocks = decode_json(read_file("$scratch/10_block_sparse.0.json"))->{problem};
is_deeply([@$blocks{qw(blocks kept)}], ['window:100', [['100', '110', '011'], ['100', '110', '110']]], 'what a block mask keeps of each block');

# ---- steps are in an order that the kernel gives, not the fibers ----

for my $stage ('03_fa1', '04_fa2', '08_fa3') {
    my ($forward, $shuffled) = map {
        system("CPU_DEVICE_ORDER=$_ $build/$stage/$stage --watch $file --json --heads 1 --seqlen 128 --seqlen-k 256 >/dev/null");
        steps_of(decode_json(read_file($file)));
    } 'forward', 'shuffle';
    is_deeply($shuffled, $forward, "$stage: the same steps in any order of threads");
}

# ---- the same page on any computer: overlapped gives its blocks work as they come, here 44 query tiles to 40 blocks ----

my @pages = map {
    my $rows = `CPU_DEVICE_THREADS=$_ $build/08_fa3/08_fa3 --watch $file --json --variant overlapped --heads 44 --seqlen 64 --seqlen-k 128 --roofline t4`;
    $rows . read_file($file);
} 1, 8;
ok($pages[0] =~ /"steps":\[\n/ && $pages[0] eq $pages[1], 'overlapped: rows and page are equal on 1 and 8 cores');
my @drawn = grep { /^4[0-3] / } uniq map { my $step = $_; map { int($_ / 64) . " by block $step->[0]" } (@{$step->[7]})[2] } grep { @{$_->[7]} }
    map { @{$_->{steps}} } @{decode_json(read_file($file))->{variants}[0]{launches}};
is(join(', ', sort @drawn), '40 by block 0, 41 by block 1, 42 by block 2, 43 by block 3', '... where blocks that are free at the same time draw in turn');

if ($ENV{TEST_ALL}) {
    my ($wgmma, $overlapped) = map {
        system("$build/08_fa3/08_fa3 --watch $file --json --heads 5 --seqlen 512 --head-dim 128 --roofline t4 --variant $_ >/dev/null");
        last_clock(decode_json(read_file($file))->{variants}[0]);
    } 'wgmma', 'overlapped';
    cmp_ok($overlapped, '<=', $wgmma, 'overlapped is not slower than wgmma by the clock');
}

# ---- several devices: what they multiply are the rows that were copied to them, whenever the copies are made ----

for my $order ('forward', 'reverse') {
    system("CPU_DEVICE_ORDER=$order $build/12_context_parallel/12_context_parallel --watch $file --json --variant rounds --heads 1 --seqlen 512 --causal --devices 2 >/dev/null");
    my ($variant) = @{decode_json(read_file($file))->{variants}};
    my ($scores, $outputs) = map {
        my ($tensor, $rows) = @$_;
        [grep { length } map { tiles_of($variant, $_, $tensor, $rows) } grep { ($_->{device} // 0) == 1 } @{$variant->{launches}}];
    } ['K', 64], ['V', 128];
    is_deeply($scores, ['2: 2, 3: 2 3, 4: 2 3 4, 5: 2 3 4 5', '2: 0 1, 3: 0 1, 4: 0 1, 5: 0 1'],
        "12_context_parallel, $order: GPU 1 multiplies its chunks, 1 and 2, with their own keys as the mask wants it, and then with those of chunk 0");
    is_deeply($outputs, ['1: 1, 2: 1 2', '1: 0, 2: 0'], '... and with their values');
    my @stored = map { stored_rows($variant, 'O', @{$_->{steps}}) } grep { ($_->{device} // 0) == 1 } @{$variant->{launches}};
    is(join(' ', uniq sort { $a <=> $b } @stored), join(' ', 128 .. 383), '... and stores these rows of O');
}

gpus_look_right();

# ---- the page in the notes: what shows it, and what is shown but for what a compiler may decide ----

my $options = '--heads 1 --seqlen 128 --seqlen-k 512';
system("sh common/classroom/watch.sh $scratch/04_fa2.html '$options' $build/03_fa1/03_fa1 $build/04_fa2/04_fa2 >/dev/null");
like(scalar `make -n watch-04 DEVICE=cpu TRACE=1 TRACE_OPTIONS='$options' 2>/dev/null`, qr{watch\.sh .*'\Q$options\E' \S+/03_fa1 \S+/04_fa2$}m,
    'make watch-04 shows 03 beside it, however many options there are');
my ($made, $kept) = map { [decided($_)] } "$scratch/04_fa2.html", 'notes/04_fa2.html';
ok($made->[$_] eq $kept->[$_], 'notes/04_fa2.html: ' . ('the same page', 'of the same run')[$_])
    or diag("make watch-04 TRACE_OPTIONS='$options' && cp build/watch/04_fa2.html notes") for 0, 1;
cmp_ok(-s 'notes/04_fa2.html', '<=', 300 * 1024, '... of at most 300 KiB');

# ---- bad input ----

like(`$build/04_fa2/04_fa2 --watch /nowhere/x 2>&1`, qr/^04_fa2: --watch \/nowhere\/x: cannot be written\n\z/, 'a file that cannot be written');
is($? >> 8, 2, '... exit code 2');
like(`$build/04_fa2/04_fa2 --watch $file --seqlen 64,65 2>&1`, qr/^04_fa2: .*--watch.*: choose one value per option/, 'two problems');
is($? >> 8, 2, '... exit code 2');

# ---- all of this can fail ----

{
    my ($data, $traced, $page) = @$planted;
    my $kernel = $data->{variants}[0]{kernels}[0];
    my $differs = sub { # with one number changed
        my ($what, $number, $sums, $truth) = @_;
        $$number++;
        my $plain = JSON::PP->new->canonical;
        isnt($plain->encode($sums->($data)), $plain->encode($truth), "planted: $what");
        $$number--;
    };
    $differs->('a line with a request too many', \$kernel->{sites}[0][3], \&by_lines, $traced->{kernels});
    $differs->('... a byte', \$kernel->{sites}[0][4], \&by_lines, $traced->{kernels});
    $differs->('... a sector', \$kernel->{sites}[0][5], \&by_lines, $traced->{kernels});
    my $step = $data->{variants}[0]{launches}[0]{steps}[0];
    $differs->('a step with a byte too many', \$step->[6][2], \&by_steps, $traced->{variants});
    $differs->('... a FLOP of a CUDA core', \$step->[2], \&by_steps, $traced->{variants});
    $differs->('... a wavefront', \$step->[4], \&by_steps, $traced->{variants});
    my $products = $step->[7];
    $step->[7] = [];
    ok(uncovered($data) > 0, 'planted: a product is missing');
    $step->[7] = $products;
SKIP: {
        skip 'no Chromium', 2 if !$chromium;
        my $wrong = read_file($page);
        $wrong =~ s/("steps":\[\n\[\d+,\d+,\d+,\d+,\d+,\d+,\[\d+,\d+,)(\d+)/$1 . ($2 + 1)/e or die 'no step';
        write_file("$scratch/wrong.html", $wrong);
        my ($seen) = opened("$scratch/wrong.html");
        isnt(join(' ', @{$seen->{tiles}}), join(' ', wanted_tiles($traced)), 'planted: the page has a byte too many');
        write_file("$scratch/wrong.html", read_file($page) =~ s/^function jump\(/function jumps(/mr);
        ($seen, my $errors) = opened("$scratch/wrong.html");
        ok($errors, 'planted: an error on the console');
    }
}
done_testing;

# The trace's rows: {kernels => {"variant kernel tensor" => {...}}, variants => {"variant tensor" or "variant" => {...}}}, without zeros.
sub traced {
    my (%kernels, %variants);
    for my $row (@_) {
        my $variant = $row->{variant};
        my $where = $row->{kernel} ? "$variant $row->{kernel}" : next;
        if (my $tensor = $row->{tensor} // $row->{memory}) {
            add(\%kernels, "$where $tensor", "$_->[0] $_->[1]", $row->{"$_->[0]_$_->[1]"} // 0) for @pairs;
            add(\%variants, "$variant $tensor", $_, $row->{"bytes_$_"}) for grep { $row->{tensor} } 'read', 'written';
            add(\%variants, $variant, 'wavefronts', $row->{"wavefronts_$_"} // 0) for 'read', 'written';
        } elsif (exists $row->{barriers}) {
            for my $count ('mma_flops', 'cuda_flops', 'exponentials', 'barriers') {
                add(\%kernels, $where, $count, $row->{$count});
                add(\%variants, $variant, $count, $row->{$count});
            }
        }
    }
    return {kernels => \%kernels, variants => \%variants};
}

sub by_lines {
    my ($data) = @_;
    my %sums;
    for my $variant (@{$data->{variants}}) {
        for my $kernel (@{$variant->{kernels}}) {
            my $where = "$variant->{name} $kernel->{name}";
            for (@{$kernel->{sites}}) {
                my (undef, $tensor, $kind, $requests, $bytes, $cost, $ideal) = @$_;
                for my $way (grep { $kind == 2 || $_ eq ('read', 'written')[$kind] } 'read', 'written') {
                    my $name = "$where $variant->{tensors}[$tensor]";
                    add(\%sums, $name, "requests $way", $requests);
                    add(\%sums, $name, "bytes $way", $bytes);
                    add(\%sums, $name, ($tensor ? 'sectors' : 'wavefronts') . " $way", $cost);
                    add(\%sums, $name, "ideal $way", $ideal);
                }
            }
            for (@{$kernel->{work}}) {
                my (undef, $what, $count, $flops) = @$_;
                add(\%sums, $where, 'mma_flops', $flops * $count);
                add(\%sums, $where, 'cuda_flops', $what eq 'flop' ? $count : 0);
                add(\%sums, $where, 'exponentials', $what eq 'exponential' ? $count : 0);
                add(\%sums, $where, 'barriers', $what =~ /^__syncthreads/ ? $count : 0);
            }
        }
    }
    return \%sums;
}

# A page without its data and sources; and of its data the steps, without FLOPs of CUDA cores, wavefronts and the clock.
sub decided {
    my ($page) = @_;
    my $text = read_file($page);
    $text =~ s/<script type="application\/json" id="data">(.*?)<\/script>\n//s or return;
    my $programs = decode_json($1);
    $text =~ s/<script type="text\/plain".*?<\/script>\n//sg;
    return ($text, join "\n", map { my $variant = $_; map { "$variant->{name}: " . JSON::PP->new->encode([@$_[0, 1, 3, 5 .. 8]]) } map { @{$_->{steps}} } @{$variant->{launches}} }
        map { @{$_->{variants}} } @$programs);
}

# Rows that a tensor does not have: where a step moves them, multiplies them, has them in shared memory.
sub beyond {
    my ($data) = @_;
    my ($p, %found) = $data->{problem};
    for my $variant (@{$data->{variants}}) {
        my $see = sub {
            my ($tensor, $first, $last) = @_;
            my $of_keys = $variant->{tensors}[$tensor] =~ /^d?[KV]/;
            $found{"$variant->{name} $variant->{tensors}[$tensor]: row $last"} = 1
                if $first <= $last && $last >= $p->{batch} * ($of_keys ? $p->{kv_heads} * $p->{seqlen_k} : $p->{heads} * $p->{seqlen_q});
        };
        for my $step (map { @{$_->{steps}} } @{$variant->{launches}}) {
            my @lists = map { [@$_] } @$step[6 .. 8];
            while (my ($tensor, undef, undef, @rows) = splice @{$lists[0]}, 0, 7) { $see->($tensor, @rows) }
            while (my (undef, $tensor, undef, undef, @rows) = splice @{$lists[1]}, 0, 6) { $see->($tensor, @rows) }
            while (my ($tensor, undef, @rows) = splice @{$lists[2]}, 0, 4) { $see->($tensor, @rows) if $tensor > 0 }
        }
    }
    return sort keys %found;
}

# When a variant, or a launch, is over.
sub last_clock { return max map { $_->[10] + $_->[11] } map { @{$_->{steps}} } @{$_[0]{launches} // [$_[0]]} }

# Steps that begin before the step before them on their multiprocessor, or the launch before theirs, is over.
sub collisions {
    my ($data) = @_;
    my @found;
    for my $variant (@{$data->{variants}}) {
        my $begin = 0;
        for my $launch (@{$variant->{launches}}) {
            my %free;
            for my $step (sort { $a->[10] <=> $b->[10] } @{$launch->{steps}}) {
                push @found, "$variant->{name}: block $step->[0] at $step->[10]" if $step->[10] < ($free{$step->[9]} // $begin);
                $free{$step->[9]} = $step->[10] + $step->[11];
            }
            $begin = last_clock($launch);
        }
    }
    return @found;
}

sub by_steps {
    my ($data) = @_;
    my %sums;
    for my $variant (@{$data->{variants}}) {
        for my $step (map { @{$_->{steps}} } @{$variant->{launches}}) {
            add(\%sums, $variant->{name}, qw(block mma_flops cuda_flops exponentials wavefronts barriers)[$_], $step->[$_]) for 1 .. 5;
            my @moves = @{$step->[6]};
            while (my ($tensor, $direction, $bytes) = splice @moves, 0, 7) {
                add(\%sums, "$variant->{name} $variant->{tensors}[$tensor]", ('read', 'written')[$direction], $bytes);
            }
        }
    }
    return \%sums;
}

# What the page says of tensors that have bytes, but no place on the map: no rows, or numbers of which a row has one alone.
sub without_place {
    my ($data) = @_;
    my %names;
    for my $variant (@{$data->{variants}}) {
        for my $step (map { @{$_->{steps}} } @{$variant->{launches}}) {
            my @moves = @{$step->[6]};
            while (my ($tensor, undef, undef, $first, $last) = splice @moves, 0, 7) { $names{$variant->{tensors}[$tensor]} = 1 if $first > $last || $variant->{tensors}[$tensor] =~ /^(LSE|l|m)$/ }
        }
    }
    return join ', ', sort keys %names;
}

sub add { my ($sums, $where, $what, $count) = @_; $sums->{$where}{$what} += $count if $count }

# All steps as text: counts, what was moved, what was multiplied.
sub steps_of {
    my ($data) = @_;
    my $sorted = sub { my ($list, $size) = @_; my @list = @$list; return join '; ', sort map { join ' ', splice @list, 0, $size } 1 .. @list / $size };
    return [map { my $variant = $_; map { map { "$variant->{name}: @$_[0 .. 5]: " . $sorted->($_->[6], 7) . ' | ' . $sorted->($_->[7], 6) } @{$_->{steps}} }
        @{$variant->{launches}} } @{$data->{variants}}];
}

# Calls $see->(name of the keys' tensor, its number of the variant, row counted through all heads, first and last key of its head).
sub each_product {
    my ($data, $see) = @_;
    my $p = $data->{problem};
    for my $variant (@{$data->{variants}}) {
        for my $step (map { @{$_->{steps}} } @{$variant->{launches}}) {
            my @products = @{$step->[7]};
            while (my (undef, $tensor, $first, $last, $left, $right) = splice @products, 0, 6) {
                for my $row ($first .. $last) {
                    my $head = int($row / $p->{seqlen_q});
                    my $keys = (int($head / $p->{heads}) * $p->{kv_heads} + int($head % $p->{heads} / ($p->{heads} / $p->{kv_heads}))) * $p->{seqlen_k};
                    $see->("$variant->{name} $variant->{tensors}[$tensor]", $row, $left - $keys, $right - $keys);
                }
            }
        }
    }
}

# A string of 0 and 1 a row, by tensor of the keys: which of them it was multiplied with.
sub map_of {
    my ($data) = @_;
    my ($p, %map) = $data->{problem};
    each_product($data, sub {
        my ($name, $row, $left, $right) = @_;
        my $seen = \($map{$name}[$row] //= '0' x $p->{seqlen_k});
        $left = 0 if $left < 0;
        $right = $p->{seqlen_k} - 1 if $right >= $p->{seqlen_k};
        substr($$seen, $left, $right - $left + 1) = '1' x ($right - $left + 1) if $right >= $left;
    });
    return \%map;
}

# Which tiles of so many queries a launch multiplies with which of as many rows of K, or V: "1: 0 1".
sub tiles_of {
    my ($variant, $launch, $name, $rows) = @_;
    my (%pairs, %tiles);
    for my $step (@{$launch->{steps}}) {
        my @products = @{$step->[7]};
        while (my (undef, $tensor, $first, $last, $left, $right) = splice @products, 0, 6) {
            for my $query ($variant->{tensors}[$tensor] eq $name ? ($first .. $last) : ()) { $pairs{$query}{$_} = 1 for $left .. $right }
        }
    }
    for my $query (keys %pairs) { $tiles{int($query / $rows)}{int($_ / $rows)}++ for keys %{$pairs{$query}} }
    return join ', ', map { my $tile = $_; "$tile: " . join ' ', map { $tiles{$tile}{$_} == $rows ** 2 ? $_ : "a part of $_" } sort keys %{$tiles{$tile}} } sort keys %tiles;
}

# The rows of a tensor that these steps store.
sub stored_rows {
    my ($variant, $name, @steps) = @_;
    my @rows;
    for my $step (@steps) {
        my @moves = @{$step->[6]};
        while (my ($tensor, $direction, undef, $first, $last) = splice @moves, 0, 7) { push @rows, $first .. $last if $direction == 1 && $variant->{tensors}[$tensor] eq $name }
    }
    return @rows;
}
sub multiplied {
    my ($data, $tensor) = @_;
    my $map = map_of($data);
    my ($name) = grep { / \Q$tensor\E$/ } keys %$map;
    return join('', map { $_ // '' } @{$map->{$name}}) =~ tr/1//;
}

# The rows of queries that did not meet all keys that they see, and were nowhere multiplied with both K and V.
sub uncovered {
    my ($data) = @_;
    my $p = $data->{problem};
    my $map = map_of($data);
    my @missing;
    for my $variant (map { $_->{name} } @{$data->{variants}}) {
        for my $tensor ($variant =~ /^06_fp8/ ? ('K8', 'VT8') : ('K', 'V')) {
            for my $row (0 .. $p->{batch} * $p->{heads} * $p->{seqlen_q} - 1) {
                my $keys = $p->{key_lengths}[int($row / ($p->{heads} * $p->{seqlen_q}))];
                my $last = $row % $p->{seqlen_q} + $keys - $p->{seqlen_q} + 1;
                my $visible = !$p->{causal} || $last > $keys ? $keys : $last < 0 ? 0 : $last;
                my $seen = substr($map->{"$variant $tensor"}[$row] // '', 0, $visible);
                my @blocks = $p->{kept} ? split //, $p->{kept}[int($row / ($p->{heads} * $p->{seqlen_q}))][int($row % $p->{seqlen_q} / 128)] : ();
                my $wanted = @blocks ? substr(join('', map { ($_ ? 1 : 0) x 128 } @blocks), 0, $visible) : '1' x $visible;
                push @missing, "$variant: query $row and $tensor" if ($seen & $wanted) ne $wanted;
            }
        }
    }
    return @missing;
}

# ---- in a browser ----

# What a panel says of a step, and at the end.
my ($tensors, $times, $said);
BEGIN {
    $times = qr/once only|for the \d+(?:st|nd|rd|th) of \d+ times|each byte (?:twice|[\d.]+ times)/;
    $tensors = qr/\w[\w ,]*?(?: [\d–]+)?(?: of heads? [\d–]+)?(?: \([\d.]+ (?:B|KiB)(?: each)?(?:, (?:$times))?\))?/;
    my $rows = qr/\d+–\d+(?: of heads? [\d–]+)?(?:, \d+–\d+(?: of heads? [\d–]+)?)*/;
    my $what = qr/computes (?:Q Kᵀ|P V|products with [KV]) of (?:query \d+(?: of heads? [\d–]+)?|queries $rows) and (?:key \d+|keys $rows)|computes [\d,]+ exponentials?|multiplies|(?:reads|stores) $tensors(?:(?:,| and) $tensors)*(?:, with $tensors)?/;
    $said = qr/Block \d+ of \d+, step \d+: (?:$what(?:; $what)*|works in shared memory alone)\. Busiest: [\w ]+, [\d,]+ cycles?\.(?: Why: [\w,; ]+\.)?|Block \d+ of \d+, step \d+: waits at a barrier\.|Done: [\d,]+ cycles.*\. \w[\w ,]* causes? the most traffic: (?:it|each) is (?:read|stored) .*\.|Between launches\./;
}

# Goes through the page by keys as a user does, and writes into it what then stands there.
sub opened {
    my ($page) = @_;
    my $script = <<'END';
<pre id="seen"></pre><script>
addEventListener('load', () => {
  const press = key => document.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true})), seen = {zoom: [], tiles: [], source: [], words: {}, steps: 0, high: 0};
  const counts = () => [...document.querySelectorAll('[data-count], [data-tensor] td')].map(c => c.textContent);
  const high = () => { seen.high = Math.max(seen.high, document.getElementById('tiles').getBoundingClientRect().bottom + scrollY); };
  const measure = () => {
    for (const panel of document.querySelectorAll('.panel')) (seen.words[panel.dataset.variant] ??= {})[panel.querySelector('.says').textContent] = 1;
  };
  innerHeight = 720; /* Chromium takes a toolbar off the window, which a projector does not show */
  rebuild();
  high();
  document.querySelectorAll('#choice button').forEach(button => { button.click(), high(); });
  measure();
  seen.nowhere = document.getElementById('help').textContent.split('Not on the map: ')[1]?.split('. ')[0].split(', ').sort().join(', ') ?? '';
  document.querySelectorAll('#choice input').forEach(box => { if (!box.checked) box.click(); });
  press('Home');
  seen.before = [...new Set(counts())].join();
  seen.ideas = [...document.querySelectorAll('.panel')].map(panel => panel.dataset.variant + ': ' + panel.querySelector('.idea').textContent);
  for (; time < lastClock() && seen.steps < 20000; seen.steps++) press('ArrowRight'), measure();
  const slider = document.getElementById('time'), range = document.getElementById('range');
  const zoomed = () => seen.zoom.push(`${slider.min} to ${slider.max}`);
  press('Home'), press('+'), zoomed();
  document.getElementById('out').click(), zoomed();
  if (range.options[1]) range.selectedIndex = 1, range.onchange(), zoomed();
  range.selectedIndex = 0, range.onchange();
  /* at the end of the slider, too, all is over */
  slider.value = slider.max;
  slider.oninput();
  for (const panel of document.querySelectorAll('.panel')) {
    for (const row of panel.querySelectorAll('tr[data-tensor]'))
      seen.tiles.push([panel.dataset.variant, row.cells[0], row.cells[1], row.cells[3]].map(c => (c.textContent ?? c).replaceAll(',', '')).join('|'));
    for (const span of panel.querySelectorAll('[data-count]'))
      seen.tiles.push([panel.dataset.variant, span.dataset.count, span.textContent.replaceAll(',', '')].join('|'));
  }
  document.getElementById('show-source').click();
  const kernel = document.getElementById('kernel');
  for (const option of kernel.options) {
    kernel.value = option.value;
    kernel.onchange();
    const total = [...document.querySelectorAll('.total td[data-column]')].filter(c => !/times|sectors/.test(c.dataset.column));
    seen.source.push([option.text, ...total.map(c => c.dataset.column + ' ' + c.textContent.replaceAll(',', ''))].join('|'));
  }
  document.getElementById('seen').textContent = JSON.stringify(seen);
});
</script>
END
    write_file("$scratch/opened.html", read_file($page) . $script);
    my $chrome = "timeout 60 $chromium --headless --no-sandbox --disable-gpu --user-data-dir=$scratch/chrome --enable-logging=stderr"
        . " --window-size=1280,720 --virtual-time-budget=5000";
    my $dom = `$chrome --dump-dom file://$scratch/opened.html 2>$scratch/console`;
    write_file("$scratch/dom", $dom =~ s/<script.*?<\/script>//gsr);
    my ($errors) = join '', grep { /CONSOLE/ } split /^/, read_file("$scratch/console");
    my ($seen) = $dom =~ /<pre id="seen">(.*?)<\/pre>/s;
    return (eval { decode_json($seen =~ s/&amp;/&/gr) } // {zoom => [], tiles => [], source => [], words => {}, ideas => [], before => '', steps => 0, high => 9999, nowhere => 'unknown'}, $errors);
}

sub wanted_tiles {
    my ($traced) = @_;
    my %here = %{$traced->{variants}};
    return sort map {
        my $where = $_;
        my ($variant, $tensor) = split / /, $where, 2;
        my %sums = %{$here{$where}};
        defined $tensor ? join('|', $variant, $tensor, map { $sums{$_} // 0 } 'read', 'written')
            : map { my ($shown, $count) = @$_; "$variant|$shown|" . ($sums{$count} // 0) } (['flops', 'mma_flops'], ['core_flops', 'cuda_flops'], (map { [$_, $_] } 'exponentials', 'wavefronts'));
    } keys %here;
}

# The slider's ends: at the beginning, zoomed in once; zoomed out again; until the first variant is done that is not the last to be.
sub wanted_zoom {
    my ($data) = @_;
    my @ends = map { last_clock($_) } @{$data->{variants}};
    my ($first) = grep { $_ < max @ends } @ends;
    return map { "0 to $_" } ceil(max(@ends) / 2), max(@ends), $first // ();
}

sub wanted_source {
    my ($traced) = @_;
    my %sums;
    while (my ($where, $counts) = each %{$traced->{kernels}}) {
        my ($variant, $kernel, $tensor) = split / /, $where, 3;
        my $sum = $sums{"$variant: $kernel"} //= {};
        while (my ($what, $count) = each %$counts) {
            $what =~ /^bytes (.*)/ && $tensor ne 'shared memory' and $sum->{$1} += $count;
            $what =~ /^wavefronts/ and $sum->{wavefronts} += $count, $sum->{conflicts} += $count;
            $what =~ /^ideal/ && $tensor eq 'shared memory' and $sum->{conflicts} -= $count;
            $sum->{{mma_flops => 'mma FLOPs', cuda_flops => 'CUDA FLOPs', exponentials => 'exp', barriers => 'barriers'}->{$what}} += $count if !defined $tensor;
        }
    }
    return sort map { my $kernel = $_; join '|', $kernel, map { "$_ " . ($sums{$kernel}{$_} // 0) } 'read', 'written', 'wavefronts', 'conflicts', 'mma FLOPs', 'CUDA FLOPs', 'exp', 'barriers' } keys %sums;
}

sub looks_right {
    my ($page, $data, $traced, $ideas, $nowhere, $name) = @_;
SKIP: {
        skip 'no Chromium', 11 if !$chromium;
        my ($seen, $errors) = opened($page);
        is($errors, '', "$name: nothing on the console");
        cmp_ok($seen->{steps}, '>', 2, "$name: " . $seen->{steps} . ' steps');
        # In 09 grouped heads have accumulators of dK and dV, two more lines in each of four panels, whose titles take a second line.
        my $lines_more = (grep { /dK accumulator/ } keys %{$traced->{kernels}}) ? 3 : 0;
        cmp_ok($seen->{high}, '<=', 720 + 14 * $lines_more, "$name: fits 1280 x 720, and 14 for each line more");
        is_deeply($seen->{zoom}, [wanted_zoom($data)], "$name: zoomed into time, out again, and to the end of a variant");
        is_deeply($seen->{ideas}, $ideas, "$name: each panel with the line that --help prints of its variant");
        is($seen->{before}, 0, "$name: nothing is counted before the first step is over");
        is(join("\n", grep { !/^($said)$/ } map { keys %$_ } values %{$seen->{words}}), '', "$name: a sentence for every step");
        if (my $words = $page =~ /03_fa1\.0/ && $seen->{words}{'03_fa1/fma'}) {
            my ($first, $later, $last) = map { my $step = $_; grep { /step $step:/ } keys %$words } 4, 10, 18;
            my $busiest = 'Busiest: device memory';
            is($first, "Block 0 of 1, step 4: reads Q 32–63 (4 KiB, for the 1st of 3 times). $busiest, 64 cycles. Why: these queries are needed again with every tile of keys.", "$name: FlashAttention-1 reads rows of Q");
            is($later, "Block 0 of 1, step 10: reads Q 32–63 (4 KiB, for the 2nd of 3 times) and O accumulator 32–63 (8 KiB, for the 1st of 2 times), with m and l. $busiest, 256 cycles. Why: the sum continues from the value that the previous key tile stored.", '... and again');
            is($last, 'Block 0 of 1, step 18: computes P V of queries 32–63 and keys 64–95; stores O 32–63 (4 KiB, once only), with LSE. Busiest: shared memory, 2,560 cycles. Why: all keys have been added, so these rows are final.', '... and stores O');
            is((grep { /^Done/ } keys %$words)[0], 'Done: 35,520 cycles. 131 of 132 multiprocessors never had a block, because all key tiles of a head add to the same rows of O, one after the other. The busiest unit was shared memory, 96% of the time. O accumulator causes the most traffic: it is read twice and stored twice.', '... and what it came to');
        }
        unlike(read_file("$scratch/dom"), qr/[^\d,]1 (?:queries|keys|blocks|cycles|exponentials)\b/, "$name: one is not many");
        is($seen->{nowhere}, $nowhere, "$name: the tensors that are not on the map");
        is_deeply([sort @{$seen->{tiles}}], [wanted_tiles($traced)], "$name: the totals after the last step");
        is_deeply([sort @{$seen->{source}}], [wanted_source($traced)], "$name: the totals of the lines");
        return if $page !~ /04_fa2\.0/;
        unlink "$scratch/picture.png";
        system("timeout 60 $chromium --headless --no-sandbox --disable-gpu --user-data-dir=$scratch/chrome --window-size=1280,720 --screenshot=$scratch/picture.png"
            . " file://$page >/dev/null 2>&1");
        cmp_ok(-s "$scratch/picture.png" // 0, '>', 20000, "$name: a picture");
        write_file("$scratch/narrow.html", read_file($page) . '<script>addEventListener("load", () => { showKind(true), rebuild();
            document.title = [document.documentElement.scrollWidth <= innerWidth, new Set([...$("panels").children].map(p => p.offsetLeft)).size, $("panels").children.length].join(); })</script>');
        my $narrow = "timeout 60 $chromium --headless --no-sandbox --disable-gpu --user-data-dir=$scratch/chrome --window-size=1024,768 --virtual-time-budget=5000 2>/dev/null";
        for my $width (800, 1024, 1280, 1920) { # what a reader or a projector needs: the code, and figures that are not small
            write_file("$scratch/sizes.html", read_file($page) . '<script>addEventListener("load", () => {
                const small = selector => [...document.querySelectorAll(selector)].filter(e => parseFloat(getComputedStyle(e).fontSize) < 14).length;
                const seen = [small("body, body *:not(script)")];
                variants.forEach(v => v.shown = true), rebuild(); /* parts of panels side by side stand at one height */
                const rows = [...document.querySelectorAll(".panel")].map(p => [p.offsetTop, [...p.children].map(c => c.offsetTop).join()]);
                seen.push(rows.filter(([top, parts]) => rows.some(([other, others]) => top === other && parts !== others)).length);
                time = Infinity, show(); /* the totals, side by side, above the legend */
                seen.push([...$("summary").rows].map(r => r.cells.length).join(" "), $("legend").hidden), time = 0, show();
                view(true);
                const code = [...document.querySelectorAll("#lines tbody .code")], box = $("lines").getBoundingClientRect(), digit = document.createElement("canvas").getContext("2d");
                digit.font = getComputedStyle(code[0]).font;
                seen.push(small("#lines td, #lines th"), code.filter(c => c.scrollWidth > c.clientWidth).length);
                $("lines").scrollLeft = 1e4; /* the figures move, the code stays */
                const at = code[0].getBoundingClientRect(), figures = box.right - at.right;
                seen.push(at.left >= box.left && at.left < box.left + 60, Math.floor(at.width / digit.measureText("0").width) >= 40, figures >= 200);
                document.title = seen.join(); })</script>');
            my $sized = "timeout 60 $chromium --headless --no-sandbox --disable-gpu --user-data-dir=$scratch/chrome --window-size=$width,800 --virtual-time-budget=5000 2>/dev/null";
            is((`$sized --dump-dom file://$scratch/sizes.html` =~ /<title>(.*?)</)[0], '0,0,8 8 8 8 8,false,0,0,true,true,true', "$name: $width px wide: letters of 14 px, parts at one height, totals side by side, and the code can be read");
        }
        is((`$narrow --dump-dom file://$scratch/narrow.html` =~ /<title>(.*?)</)[0], 'true,2,4', "$name: four panels in two columns of 1024 px");
        system("$narrow --print-to-pdf=$scratch/paper.pdf file://$scratch/narrow.html");
        is(() = (-e "$scratch/paper.pdf" ? read_file("$scratch/paper.pdf") : '') =~ m{/Type */Page\b}g, 1, '... and on one page of A4');
    }
}

# A panel for each of them, with a clock of its own; together they have what the trace counts. Four are shown.
sub gpus_look_right {
SKIP: {
        skip 'no Chromium', 8 if !$chromium;
        my ($program, $shape, $page) = ("$build/12_context_parallel/12_context_parallel", '--variant rounds --heads 1 --seqlen 512 --causal --devices 2', "$scratch/devices.html");
        my $traced = traced(map { decode_json($_) } `$program --watch $file --json $shape`);
        my ($variant) = @{decode_json(read_file($file))->{variants}};
        my (%clock, %sum, %wanted);
        $clock{$_->{device}} += last_clock({launches => [$_]}) - min(map { $_->[10] } @{$_->{steps}}) for @{$variant->{launches}};
        system("sh common/classroom/watch.sh $page '$shape' $program >/dev/null");
        my ($seen, $errors) = opened($page);
        is($errors, '', '12_context_parallel in Chromium: nothing on the console');
        is(join('; ', map { s/:.*//r } @{$seen->{ideas}}), 'rounds, GPU 0; rounds, GPU 1', '... a panel for each GPU');
        is($seen->{zoom}[1], '0 to ' . max(values %clock), '... whose clock has its own launches alone');
        is(join("\n", grep { !/^($said)$/ } map { keys %$_ } values %{$seen->{words}}), '', '... a sentence for every step');
        for (map { [split /\|/] } @{$seen->{tiles}}) {
            my ($panel, $what, @counts) = @$_;
            $sum{@counts > 1 ? ('read', 'written')[$_] : $what} += $counts[$_] for 0 .. $#counts;
        }
        for (map { [split /\|/] } wanted_tiles($traced)) {
            my ($panel, $what, @counts) = @$_;
            $wanted{@counts > 1 ? ('read', 'written')[$_] : $what} += $counts[$_] for 0 .. $#counts;
        }
        is_deeply(\%sum, \%wanted, '... whose counts add up to those of the trace');
        is_deeply([sort @{$seen->{source}}], [wanted_source($traced)], '... the lines are those of all GPUs');
        $shape =~ s/512 --causal --devices 2/100 --devices 5/;
        system("sh common/classroom/watch.sh $page '$shape' $program >/dev/null");
        my $dom = `timeout 60 $chromium --headless --no-sandbox --disable-gpu --user-data-dir=$scratch/chrome --virtual-time-budget=5000 --dump-dom file://$page 2>/dev/null`;
        is(() = $dom =~ /<section class="panel"/g, 4, '... of five GPUs four');
        like($dom, qr/4 of 5 GPUs are shown; the boxes above show the others/, '... which the page says');
    }
}
