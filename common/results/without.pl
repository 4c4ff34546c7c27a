#!/usr/bin/env perl
# without.pl - kernels with one thing left out at a time, side by side: what each trick is worth.
#
#     perl common/results/without.pl check                    that every change still finds its place
#     perl common/results/without.pl build [TABLE...]         builds them for the GPU, as many at once as there are cores
#     perl common/results/without.pl tuned_without > notes/results/nvidia-h200/tuned_without.tsv
#     perl common/results/without.pl fa3_rungs     > notes/results/nvidia-h200/fa3_rungs.tsv
#     perl common/results/without.pl fa2_changes   > notes/results/nvidia-h200/fa2_changes.tsv
#
# A change is a file, an exact piece of it, which must be there once, and what takes its place; more pieces, and more files, may follow. It
# changes the variant that its name begins with, or else the last of the table's. Nothing validates the results: a kernel that leaves out a
# guard may be wrong. Figures are medians of ROUNDS=5 rounds of all kernels: batch 4, 16 heads, 4096, fp16.
use strict;
use warnings;
use JSON::PP;

my ($tuned, $warp) = ('04_fa2/tuned.cu', 'common/gpu/warp.cuh');
my $order = 'p.causal ? p.batch * p.heads : 1, blockIdx.x';
my @beside = ('wgmma_wait<1>(s);' => 'wgmma_wait<0>(s); wgmma_wait<0>(o, a);');
my @turns = ('{TURN, consumer, consumers}' => '{TURN, consumer, consumers, false}');
my %tables = (
    tuned_without => ['04_fa2', ['tuned'], 'left out of tuned', 'nothing left out: TFLOP/s',
        ['double buffering', $tuned, "    if (here.key_tiles > 0)\n        load_keys(here.key_tiles - 1, here.keys);\n" => '',
            'cp_async_wait<0>();
        __syncthreads(); /*' => '__syncthreads();
        load_keys(tile, tile == here.key_tiles - 1 ? here.keys : INT_MAX);
        cp_async_wait<0>();
        __syncthreads(); /*', "        if (tile > 0)\n            load_keys(tile - 1, INT_MAX);" => ''],
        ['block order; under a causal mask a head at a time instead (full: as in tuned)', $tuned, $order => '1, blockIdx.x'],
        ['block order; in full attention all heads together instead (causal: as in tuned)', $tuned, $order => 'p.batch * p.heads, blockIdx.x'],
        ['last key tile first', $tuned, 'load_keys(here.key_tiles - 1, here.keys);' => 'load_keys(0, here.keys);',
            'for (int tile = here.key_tiles - 1; tile >= 0; tile--)' => 'for (int tile = 0; tile < here.key_tiles; tile++)',
            "if (tile > 0)\n            load_keys(tile - 1, INT_MAX);" => "if (tile + 1 < here.key_tiles)\n            load_keys(tile + 1, here.keys);"],
        ['a finite start', $tuned, 'm[r] = LOWEST' => 'm[r] = -INFINITY', 'x * factor - m[r]' => 'x * factor - shift_of(m[r])', $warp,
            'fabsf(m_new)' => 'fabsf(shift_of(m_new))', 'exp2_approx(m[r] - m_new)' => 'm_new == m[r] ? 1 : exp2_approx(m[r] - m_new)'],
        ['base 2', $warp, 'exp2_approx(m[r] - m_new)' => 'exp2_approx(LOG2_E * (m[r] - m_new))', $tuned, 'p.scale * LOG2_E;' => 'p.scale;',
            'exp2_approx(x * factor - m[r])' => 'exp2_approx(LOG2_E * (x * factor - m[r]))'],
        ['beyond FAR, rounded first', $warp, 'fabsf(m_new) > FAR' => 'false', '-least > FAR || most > FAR' => 'false'],
        ['mask where it matters', $tuned, 'if (tile >= here.whole_tiles)' => 'if (true)'],
        ['lazy rescaling', $warp, 'SLACK = 8' => 'SLACK = 0'],
        ['tile of 128 rows; 64 instead', $tuned, 'm_tiles = D <= 128 ? 2 : 1' => 'm_tiles = 1'],
    ],
    fa3_rungs => ['08_fa3', [qw(wgmma specialised overlapped)], 'kernel', 'overlapped',
        (map { ["overlapped: $_->[0]", '08_fa3/overlapped.cu', @$_[1 .. $#$_]] }
            ['no overlap inside a consumer: turns alone', @beside],
            ['no turns: overlap alone', @turns],
            ['neither', @beside, @turns],
            ['`wgmma_wait<0>` kept behind the softmax', 'wgmma_wait<0>(o, a);' => 'if (tile > 0) shared.wait_for_k(n + 2); wgmma_wait<0>(o, a);'],
            ['two consumers at D = 64', 'common/gpu/ring.cuh', 'consumers = D == 64 ? 3 : 2' => 'consumers = 2', 'producer_registers = D == 64 ? 32 : 24' => 'producer_registers = 24',
                'consumer_registers = D == 64 ? 160 : 240' => 'consumer_registers = 240'],
            ['query tiles dealt in advance, no counter', 'common/gpu/ring.cuh', 'i = draw_tile(next, count, producers)' => 'i += producers']),
        ['overlapped: O rescaled whenever a maximum grows (SLACK 0)', $warp, 'SLACK = 8' => 'SLACK = 0'],
    ],
    fa2_changes => ['04_fa2', [qw(epilogue loop_swap split_q parallel)], 'kernel, ms', 'parallel',
        (map { ["parallel: $_ blocks per head", '04_fa2/parallel.cu', 'workspace, Br)' => "workspace, Br * ceil_div(p->seqlen_q, $_ * Br))"] } 2, 4, 8, 16, 32, 64),
        ['loop_swap: tiles of 32 x 64', '04_fa2/loop_swap.cu', 'key_tile(D, CAPABILITY), warp' => '64, warp', 'key_tile(D, capability), D> k' => '64, D> k'],
        ['split_q: tiles of 32 x 64, two warps', '04_fa2/split_q.cu', 'int Br = 64' => 'int Br = 32', '04_fa2/split_q.cuh', 'WARPS = 4' => 'WARPS = 2'],
        ['split_q: tiles of 32 x 128, two warps', '04_fa2/split_q.cu', 'int Br = 64' => 'int Br = 32', '04_fa2/split_q.cuh', 'WARPS = 4' => 'WARPS = 2', 'Bc = 64' => 'Bc = 128', '64 * 1024' => '99 * 1024'],
    ],
);
my $folder = $ENV{WITHOUT} // 'build/without';
my ($wish, @named) = @ARGV ? @ARGV : '';
my @strange = grep { $wish ne 'build' || !$tables{$_} } @named;
@named = sort keys %tables if !@named;
if (@strange) {
    print STDERR "without.pl: $strange[0]: after build choose " . join(' or ', sort keys %tables) . "\n";
    exit 2;
} elsif ($wish eq 'check') {
    changed(@$_) for map { @$_[4 .. $#$_] } values %tables;
} elsif ($wish eq 'build') {
    build(@named);
} elsif ($tables{$wish}) {
    table($wish);
} else {
    print STDERR 'without.pl: choose check, build, ' . join(' or ', sort keys %tables) . "\n";
    exit 2;
}

# Each in a copy of the tree and of what is built, so that make compiles only what a change touches.
sub build {
    my ($commit) = `git describe --always --dirty 2>/dev/null` =~ /(\S+)/;
    my $make = 'make --no-print-directory DEVICE=cuda COMMIT=' . ($commit // 'unknown');
    for my $name (@_) {
        my ($stage, $variants, $title, $whole, @changes) = @{$tables{$name}};
        system("$make $stage >/dev/null") == 0 or exit 2;
        my $out = readlink("$stage/$stage") =~ s{^\.\./}{}r =~ s{/$stage/$stage$}{}r;
        my @jobs = map { [$_, $changes[$_]] } 0 .. $#changes;
        my $cores = $ENV{JOBS} || `getconf _NPROCESSORS_ONLN` + 0;
        my @children;
        for my $core (0 .. $cores - 1) {
            my $child = fork() // die "fork: $!\n";
            push @children, $child and next if $child;
            for my $job (grep { $_->[0] % $cores == $core } @jobs) {
                my ($number, $change) = @$job;
                my $sources = changed(@$change);
                my $copy = "$folder/tree-$name-$number";
                system("rm -rf $copy && mkdir -p $copy/$out && cp -a Makefile common tests [0-9]*_* $copy && cp -a $out/*-* $out/common $out/00_naive* $out/$stage $copy/$out") == 0
                    or exit 2;
                write_text("$copy/$_", $sources->{$_}) for keys %$sources;
                system("cd $copy && $make JOBS=1 $stage >/dev/null && cd - >/dev/null && cp $copy/$stage/$stage $folder/$name-$number && rm -rf $copy") == 0
                    or warn "$change->[0]: does not build\n";
            }
            exit 0;
        }
        for (@children) { waitpid($_, 0); exit 2 if $? }
    }
}

# The files as the change leaves them.
sub changed {
    my ($called, @pieces) = @_;
    my (%source, $file);
    while (my $old = shift @pieces) {
        $file = $old, next if $old =~ m{^[\w/]+\.cuh?$};
        $source{$file} //= read_text($file);
        my $times = () = $source{$file} =~ /\Q$old\E/g;
        die "$called: $file has '$old' $times times, not once\n" if $times != 1;
        my $new = shift @pieces;
        $source{$file} =~ s/\Q$old\E/$new/;
    }
    return \%source;
}

sub table {
    my ($name) = @_;
    my ($stage, $variants, $title, $whole, @changes) = @{$tables{$name}};
    my @programs = ("$stage/$stage", map { "$folder/$name-$_" } 0 .. $#changes);
    my $last = $variants->[-1];
    my ($figure, $format) = $title =~ /, ms$/ ? ('latency_ms', '%.3g') : ('tflops', '%.0f');
    my %speeds; # by kernel and shape
    for my $round (1 .. $ENV{ROUNDS} // 5) {
        for my $i ($round % 2 ? 0 .. $#programs : reverse 0 .. $#programs) { # so that none always runs behind the same one
            next if !-x $programs[$i];
            for my $one ($i == 0 ? @$variants : $changes[$i - 1][0] =~ /^(\w+): / ? $1 : $last) {
                my $options = "--batch 4 --heads 16 --seqlen 4096 --head-dim 64,128 --mask full,causal --no-validate --json --variant $one";
                for my $row (map { decode_json($_) } `./$programs[$i] $options`) {
                    push @{$speeds{$i == 0 && $one ne $last ? $one : $i}{"D$row->{head_dim} " . ($row->{causal} ? 'causal' : 'full')}}, $row->{$figure};
                }
            }
        }
    }
    my @shapes = ('D64 full', 'D64 causal', 'D128 full', 'D128 causal');
    print join("\t", $title, @shapes), "\n";
    my @lines = map { [$_, $speeds{$_}] } grep { $speeds{$_} } @$variants;
    push @lines, [$whole, $speeds{0}], map { [$changes[$_][0], $speeds{$_ + 1}] } 0 .. $#changes;
    for my $line (@lines) {
        my ($called, $of) = @$line;
        my $relative = $name eq 'tuned_without' && $called ne $whole; # to tuned of the same round, or TFLOP/s
        print join("\t", $called, map {
            my $shape = $_;
            my @rounds = $relative ? map { $of->{$shape}[$_] / $speeds{0}{$shape}[$_] } 0 .. $#{$of->{$shape} // []} : @{$of->{$shape} // []};
            @rounds ? sprintf($relative ? '%.3f' : $format, (sort { $a <=> $b } @rounds)[$#rounds / 2]) : '';
        } @shapes), "\n";
    }
}

sub read_text { open my $in, '<', $_[0] or die "$_[0]: $!\n"; local $/; return <$in> }
sub write_text { open my $out, '>', $_[0] or die "$_[0]: $!\n"; print $out $_[1]; close $out or die "$_[0]: $!\n" }
