#!/usr/bin/env perl
# tables.pl - keeps the figures in README.md, in notes/*.md and in common/harness/recorded.h equal to the result files they come from.
#
#     perl common/results/tables.pl             rewrites what has changed
#     perl common/results/tables.pl --check     rewrites nothing, names what it would rewrite; exit code 1 if there is something
#
# A figure stands between two comments that a reader of the page does not see. Files are those of notes/results/nvidia-h200;
# ladder.tsv lies beside this file.
#
#     <!-- table: ladder.jsonl -->             a stage's --json rows, a line per variant
#     <!-- table: ladder.jsonl to 03_fa1 -->   the same, up to this stage
#     <!-- table: backward.jsonl -->           the same; of the backward: 05_fa2_backward/atomic/backward, 05_fa2_backward/atomic/both
#     <!-- table: forward_fp16.txt -->         shapes timed beside other programs, with the ratios
#     <!-- table: ceilings.tsv -->             any table: columns between tabs, the first line is the heading
#     <!-- table: ladder.tsv -->               the whole course: its lines say in which file a variant's row is, and what its idea is
#     <!-- table: sweep.csv against 03_fa1/fa1 01_tiled/mma -->  variants' latencies, full attention, fp16, the last over the first;
#                                                                a number before them is the head dim, else all are shown;
#                                                                a second one is the largest N
#     <!-- table: tuned_without.tsv only base 2 | lazy -->   the rows that begin so
#     <!-- text: 04_fa2.txt -->                what a program printed
#     <!-- text: 04_fa2.txt without workspace | recorded -->   but for the lines that begin so, and those indented after them
#     <!-- text: 04_fa2.txt without "column simulated" | recorded -->   and but for a column of its table
#     <!-- end -->
#
#     <!-- value: ladder.jsonl 03_fa1/fa1 latency_ms -->56.6 ms<!-- end -->                row, column
#     <!-- value: ladder.jsonl 03_fa1/fa1 latency_ms over 01_tiled/mma -->8.1<!-- end -->  how many times a row's
#     <!-- value: ladder.jsonl 03_fa1/fa1 latency_ms over 8192 -->6.9 us<!-- end -->       or divided by a number
#     <!-- value: fa3_rungs.tsv "overlapped" "D128 full" gain "overlapped: neither" -->2.7%<!-- end -->
#                                                                           by how much it is faster; words with spaces in quotes
#     <!-- value: diff fa1-epilogue -->29 lines of code go, 30 come<!-- end -->     of make diff-fa1-epilogue
#     <!-- value: fa3_forward_fp16.txt cudnn mean -->1.00<!-- end -->      of a comparison: the mean, or the worst, of the ratios
#     <!-- value: machine.tsv date is -->2026-11-21<!-- end -->             of a .tsv: a row is named by its first column
#
#     /* table: recorded */                    in C: what the variants took, for the line `recorded` on the CPU device
#     /* end */
#
# A file or a row that is not there yet gives "not measured yet"; of a row it says so each time.
use strict;
use warnings;
use JSON::PP;
use List::Util qw(max);

my $results = 'notes/results/nvidia-h200';
my $check = @ARGV == 1 && $ARGV[0] eq '--check';
if (@ARGV && !$check) {
    print STDERR "tables.pl: $ARGV[0]: choose --check or nothing\n";
    exit 2;
}

my $stale = 0;
our $page; # the one at work
for $page ('README.md', sort(glob 'notes/*.md'), "$results/README.md", 'common/harness/recorded.h') {
    my $old = read_text($page);
    my $new = $old =~ s{((?:<!--|/\*) (table|value|text): (.*?) (?:-->|\*/))(.*?)((?:<!--|/\*) end )}{$1 . figure($2, $3, $4) . $5}gser;
    write_text($page, $new) if $new ne $old && !$check;
}
exit($check && $stale ? 1 : 0);

# What belongs between the comments; says so if that is not what is there.
sub figure {
    my ($kind, $wish, $old) = @_;
    my ($file, @words) = map { s/^"(.*)"$/$1/r } $wish =~ /"[^"]*"|\S+/g;
    my $new = eval {
        $file eq 'diff' ? changed_lines(@words) : $file eq 'recorded' ? recorded() : $file eq 'ladder.tsv' ? course($file, @words) : $kind eq 'text' && -e "$results/$file" ? "```\n" . printed($file, @words) . '```' : !-e "$results/$file" ? 'not measured yet' : $kind eq 'value' ? value($file, @words)
            : $file =~ /\.csv$/ ? against($file, @words) : $file =~ /\.jsonl$/ ? ladder($file, @words)
            : $file =~ /\.tsv$/ ? plain($file, @words) : peers($file, @words);
    } // die "$page: $kind: $wish: $@";
    $new = "\n$new\n" if $kind ne 'value';
    if ($new ne $old) {
        $stale++;
        print "$page: $kind: $wish: ", $kind eq 'value' ? "$old, now $new" : 'changed', "\n";
    }
    return $new;
}

# What a program printed, without the lines that begin as one of the words between | after `without`, and without the columns.
sub printed {
    my ($file, $without, @words) = @_;
    my $text = read_text("$results/$file");
    for my $word ($without ? split(/ *\| */, "@words") : ()) {
        $text = $word =~ /^column (.+)/ ? without_column($text, $1) : $text =~ s/^\Q$word\E.*\n(?: +.*\n)*//mgr;
    }
    return $text;
}

# A text whose table has lost one column, which is as wide as its name in each row that begins with a stage.
sub without_column {
    my ($text, $name) = @_;
    my ($before) = $text =~ /^(variant.*?) \Q$name\E /m or die "no column $name\n";
    my ($start, $width) = (length $before, 1 + length $name);
    return $text =~ s/^(?=variant|\d\d_)(.{$start}).{$width}/$1/mgr;
}

# ---- files ----

# A result file as rows (hashes by column, in the file's order) and the name of the column that names a row.
sub rows {
    my ($file) = @_;
    my @lines = split /\n/, read_text($file eq 'ladder.tsv' ? "common/results/$file" : "$results/$file");
    if ($file =~ /\.jsonl$/) {
        my @rows = map { JSON::PP->new->decode($_) } @lines;
        die "$_->{variant} is wrong\n" for grep { defined $_->{ok} && !$_->{ok} } @rows;
        $_->{variant} .= "/$_->{direction}" for grep { $_->{direction} =~ /^(backward|both)$/ } @rows;
        my %seen; # each program runs 00_naive too: the first will do
        return ([grep { !$seen{$_->{variant}}++ } @rows], 'variant');
    }
    my $between = $file =~ /\.csv$/ ? ',' : "\t";
    my @columns = split /$between/, shift @lines;
    return ([map { my %row; @row{@columns} = split /$between/; \%row } @lines], $columns[0]);
}

sub row {
    my ($file, $name, $may_lack) = @_;
    my ($rows, $key) = rows($file);
    my ($row) = grep { $_->{$key} eq $name } @$rows;
    print "$page: $file has no row $name: not measured yet\n" if !$row && !$may_lack;
    return $row;
}

# ---- figures ----

# The C of common/harness/recorded.h: the ladder's rows in full attention, without the peers' and those of preparations.
sub recorded {
    my @lines = sprintf 'static const char RECORDED_ON[] = "%s, %s";', map { row('machine.tsv', $_)->{is} } 'GPU', 'date';
    push @lines, 'static const Recorded RECORDED[] = {';
    for my $row (map { @{(rows("$_.jsonl"))[0]} } grep { -e "$results/$_.jsonl" } qw(ladder backward fp8 decode)) {
        my ($heads, $keys) = map { $_->[0] eq $_->[1] ? $_->[0] : join $_->[2], @$_[0, 1] } [@$row{qw(heads kv_heads)}, '/'], [@$row{qw(seqlen_q seqlen_k)}, 'x'];
        next if $row->{variant} !~ m{^\Q$row->{stage}\E(?:/|$)} || $row->{direction} !~ /^(?:for|back)ward$/ || $row->{causal};
        push @lines, sprintf '    {"%s", "%s, batch %s, %s heads, %s, head dim %s, %s, full", %.3g},', $row->{variant} =~ s{/backward$}{}r, $row->{direction},
            $row->{batch}, $heads, $keys, @$row{qw(head_dim dtype latency_ms)};
    }
    return join "\n", @lines, '};';
}

# "67 lines of code go, 79 come": what make diff says.
sub changed_lines { return (`sh common/classroom/diff.sh $_[0]` =~ /: (\d+ lines of code go, \d+ come)$/)[0] // 'not comparable' }

sub value {
    my ($file, $name, $column, $over, $divisor) = @_;
    return ratio($file, $name, $column) if $file =~ /\.txt$/;
    my ($row, $other) = map { row($file, $_) // return 'not measured yet' } $name, ($divisor // '') =~ /[a-z]/ ? $divisor : ();
    my $figure = $row->{$column} // die "there is no column $column\n";
    return with_unit($column, $figure) if !defined $over;
    return sprintf '%.1f%%', 100 * ($figure / $other->{$column} - 1) if $over eq 'gain';
    return $other ? three_digits($figure / $other->{$column}) : with_unit($column, $figure / $divisor);
}

sub ladder {
    my ($file, $to, $stage) = @_;
    my @lines = (['variant', 'latency', 'TFLOP/s', 'workspace'], ['---', ('---:') x 3]);
    my ($rows) = rows($file);
    my (%directions, $problem);
    for my $row (@$rows) {
        last if defined $stage && $row->{stage} gt $stage;
        my ($b, $h, $hk, $q, $k, $d, $type) = @$row{qw(batch heads kv_heads seqlen_q seqlen_k head_dim dtype)};
        my $this = "batch $b, heads $h/$hk, seqlen $q×$k, head_dim $d, $type, " . ($row->{causal} ? 'causal' : 'full');
        $problem //= $this;
        die "rows of two problems: $problem; $this\n" if $problem ne $this;
        $directions{$row->{direction}} = 1;
        push @lines, [$row->{variant}, with_unit('latency_ms', $row->{latency_ms}), $row->{tflops} ? three_digits($row->{tflops}) : '',
                      with_unit('bytes', $row->{workspace_bytes})];
    }
    my $what = keys %directions == 1 ? ucfirst((keys %directions)[0]) . ", $problem" : ucfirst $problem;
    return markdown(@lines) . "\n\n$what. " . measured($file) . '.';
}

# Lines: result file, row, pass, the column that is its speed, the vendor's row in peers.jsonl (or its place in what peers.py printed),
# the idea. Stages are linked to their notes, variants to their kernels. The causal rows have the same names, in causal.jsonl and, of
# the vendor, with the word behind.
sub course {
    my ($file, @only) = @_;
    my @lines = (['stage', 'pass', 'the idea', 'latency', 'speed, % of the library\'s', 'causal, % of the library\'s', 'workspace'],
                 [('---') x 3, ('---:') x 4]);
    my ($rows) = rows($file);
    for my $line (map { $_->[1] } only([map { [$_->{row}, $_] } @$rows], @only)) {
        my ($stage, $variant) = split /\//, $line->{row} =~ s/\w+\+//r; # quantise+mma is about mma
        my ($notes, $root) = $page =~ /^notes/ ? ('', '../') : ('notes/', '');
        my $name = !-e "notes/$stage.md" ? $stage : "[$stage]($notes$stage.md)" . ($variant ? " [$variant]($root$stage/$variant.cu)" : '');
        my ($row, $causal) = map { -e "$results/$_" ? row($_, $line->{row}, $_ eq 'causal.jsonl') : undef } $line->{file}, 'causal.jsonl';
        my ($vendor, $vendors_causal) = $line->{vendor} =~ /,/ ? {$line->{speed} => peer(split /, /, $line->{vendor})}
            : map { row('peers.jsonl', $_, 1) } $line->{vendor}, "$line->{vendor} causal";
        my $speed = sub {
            my ($of, $vendors) = @_;
            return join ', ', map { $_ // () } $of && with_unit($line->{speed}, $of->{$line->{speed}}),
                $of && $vendors && percent($of->{$line->{speed}}, $vendors->{$line->{speed}});
        };
        push @lines, [$name, @$line{qw(pass idea)}, !$row ? ('not measured yet') x 4 : (
            with_unit('latency_ms', $row->{latency_ms}),
            $speed->($row, $row->{stage} eq 'peers' ? undef : $vendor),
            $row->{stage} eq 'peers' ? $speed->($vendors_causal) : $speed->($causal, $vendors_causal),
            defined $row->{workspace_bytes} ? with_unit('bytes', $row->{workspace_bytes}) : '')];
    }
    return markdown(@lines);
}

# Variants side by side, in each shape that all were timed at.
sub against {
    my ($file, undef, @variants) = @_;
    my ($only, $longest) = map { $variants[0] =~ /^\d+$/ ? shift @variants : 0 } 1, 2; # this head dim, N up to this
    my ($rows) = rows($file);
    my %at; # by shape and variant
    for my $row (grep { $_->{latency_ms} && $_->{direction} =~ /forward$/ && "$_->{dtype} $_->{causal}" eq 'fp16 false' } @$rows) {
        $at{join ' ', @$row{qw(head_dim seqlen_q batch heads)}}{$row->{variant}} = $row->{latency_ms};
    }
    my @pair = map { [/^(\d\d)\w*\/(.*)/] } @variants[-1, 0]; # "02 / 03", by their stages, or by their names in one stage
    my $ratio = join ' / ', map { $pair[0][0] eq $pair[1][0] ? "`$_->[1]`" : $_->[0] } @pair;
    my @lines = (['D', 'N', 'batch · heads', (map { "`$_`" } @variants), $ratio], [('---:') x (4 + @variants)]);
    for my $shape (sort { my @a = split ' ', $a; my @b = split ' ', $b; $a[0] <=> $b[0] || $a[1] <=> $b[1] } keys %at) {
        my @latency = grep { $_ } @{$at{$shape}}{@variants};
        my ($head_dim, $length, $batch, $heads) = split ' ', $shape;
        next if @latency < @variants || ($only && $head_dim != $only) || ($longest && $length > $longest);
        push @lines, [$head_dim, $length, $batch * $heads, (map { with_unit('latency_ms', $_) } @latency),
                      sprintf '%.2f', $latency[-1] / $latency[0]];
    }
    return markdown(@lines) . "\n\nFull attention, fp16, from " . link_to($file) . '.';
}

sub percent {
    my ($figure, $of) = @_;
    my $percent = 100 * $figure / $of;
    return sprintf($percent < 9.5 ? '%.1f%%' : '%.0f%%', $percent);
}

# A peer's speed in a file as peers() reads it: peer('forward_fp16.txt', 'D128 full S4096 B4 fp16', 'cudnn').
sub peer {
    my ($file, $shape, $peer) = @_;
    my ($line) = grep { /^\Q$shape\E\s/ } split /\n/, read_text("$results/$file");
    return defined $line && $line =~ /\|\s*\Q$peer\E\s+([\d.]+)/ ? $1 : die "$file: no $peer at $shape\n";
}

# What the last lines of such a file say: ratio('forward_fp16.txt', 'cudnn', 'mean').
sub ratio {
    my ($file, $peer, $which) = @_;
    read_text("$results/$file") =~ /^geometric mean against \Q$peer\E\s+x([\d.]+)\s+worst x([\d.]+)/m or die "no mean against $peer\n";
    return sprintf '%.2f', {mean => $1, worst => $2}->{$which} // die "$which: choose mean or worst\n";
}

sub plain {
    my ($file, @only) = @_;
    my ($heading, @lines) = map { [split /\t/, $_, -1] } split /\n/, read_text("$results/$file");
    @lines = only(\@lines, @only);
    return markdown($heading, [('---') x @$heading], @lines) . "\n\nFrom " . link_to($file) . '.';
}

# The rows that begin as one of the words between | after `only`; all without.
sub only {
    my ($rows, $only, @words) = @_;
    return @$rows if !$only;
    return map { my $start = $_; my @found = grep { index($_->[0], $start) == 0 } @$rows; @found ? @found : die "no row begins with $start\n" }
        split / *\| */, "@words";
}

# Lines as:   D64 full S512 B32 fp16   split_q   0.1234 ms   278.1 TF  | flash 263.0  x1.057  | cudnn 383.0 x0.726
# and, last:  geometric mean against flash x1.18 worst x1.05
sub peers {
    my ($file, @only) = @_;
    my (@lines, %means, @names, %variants, $speed_of, %spreads);
    for (split /\n/, read_text("$results/$file")) {
        if (/^(\S.*?)\s+(\S+)\s+([\d.]+) ms\s+([\d.]+) (TF|GB\/s)(?:\s+([\d.]+) %)?\s*\|(.*)/) {
            my ($shape, $variant, $ms, $speed, $unit, @peers) = ($1, $2, $3, $4, $5, split /\|/, $7);
            push @{$spreads{$variant}}, $6 if defined $6;
            $speed_of = $unit eq 'TF' ? 'TFLOP/s' : $unit;
            my (@here, @cells);
            for (@peers) {
                /(\S+)\s+([\d.]+)\s+x\s*([\d.]+)(?:\s+([\d.]+) %)?/ or die "cannot read '$_'\n";
                push @{$spreads{$1}}, $4 if defined $4;
                next if $1 eq 'better'; # one of the others
                push @here, $1;
                push @cells, three_digits($2), sprintf '%.2f', $3;
            }
            @names = @here if @here > @names;
            $variants{$variant} = 1;
            push @lines, [$shape, $variant, with_unit('latency_ms', $ms), three_digits($speed), @cells];
        } elsif (/^geometric mean against (\S+)\s+x([\d.]+)\s+worst x([\d.]+)/) {
            $means{$1} = [map { sprintf '%.2f', $_ } $2, $3];
        }
    }
    die "no lines in it\n" if !@lines;
    @lines = only(\@lines, @only);
    splice @names, (max(map { scalar @$_ } @lines) - 4) / 2; # peers that none of these rows has
    my @columns = map { ("$_, $speed_of", 'ratio') } @names;
    my $spread = sub { my ($name) = @_; return $spreads{$name} ? max(@{$spreads{$name}}) . ' %' : '' };
    if (keys %variants > 1) { # each line says which; where a peer was not timed, its cells are empty
        unshift @lines, ['shape', 'variant', 'latency', $speed_of, @columns], ['---', '---', ('---:') x (2 + @columns)];
        push @$_, ('') x (4 + @columns - @$_) for @lines;
        push @lines, ["$_: geometric mean; worst", ('') x (2 + @columns), join '; ', @{$means{$_}}] for @only ? () : sort keys %means;
    } else {
        my ($variant) = keys %variants;
        splice @$_, 1, 1 for @lines;
        unshift @lines, ['shape', "$variant, latency", "$variant, $speed_of", @columns], ['---', ('---:') x (2 + @columns)];
        push @lines, ['geometric mean', '', '', map { ('', $means{$_}[0]) } @names], ['worst', '', '', map { ('', $means{$_}[1]) } @names];
    }
    push @lines, ['spread, at most', keys %variants > 1 ? '' : (), join(', ', map { $spread->($_) } sort keys %variants), '', map { ($spread->($_), '') } @names]
        if %spreads && !@only;
    my $better = $means{better} ? "Against the better in each row: geometric mean $means{better}[0], worst $means{better}[1]. " : '';
    return markdown(@lines) . "\n\n" . $better . measured($file) . '.';
}

# Where and when. Where runs.tsv knows it, also of which commit, the lowest and the median clock, the highest power meanwhile; else
# the rows may say when and of which commit.
sub measured {
    my ($file, @rows) = @_;
    my %when = map { ($_->{date} => 1) } @rows;
    my @runs = -e "$results/runs.tsv" ? @{(rows('runs.tsv'))[0]} : ();
    my ($run) = grep { $_->{files} && " $_->{files} " =~ / \Q$file\E / } @runs;
    return join ', ', row('machine.tsv', 'GPU')->{is}, $run ? $run->{date} : %when ? sort keys %when : row('machine.tsv', 'date')->{is}, link_to($file);
}

# A result file, as a link from the page at work.
sub link_to {
    my ($file) = @_;
    my $folder = $page =~ /^notes\/results/ ? '' : $page =~ /^notes/ ? "$results/" =~ s/^notes\///r : "$results/";
    return "[$file]($folder$file)";
}

# ---- words ----

sub markdown { return join "\n", map { '| ' . join(' | ', @$_) . ' |' } @_ }

sub three_digits {
    my ($x) = @_;
    my $decimals = $x >= 100 ? 0 : $x >= 10 ? 1 : $x >= 1 ? 2 : 3;
    return sprintf '%.*f', $decimals, $x;
}

sub with_unit {
    my ($column, $x) = @_;
    if ($column =~ /_ms$/) {
        return $x >= 1 ? three_digits($x) . ' ms' : three_digits(1000 * $x) . ' us';
    } elsif ($column =~ /bytes$/) {
        return $x == 0 ? '0' : $x < 2**10 ? "$x bytes" : $x < 2**30 ? three_digits($x / 2**20) . ' MiB' : three_digits($x / 2**30) . ' GiB';
    }
    return $column eq 'tflops' ? three_digits($x) . ' TFLOP/s' : $column =~ /gbps$/ ? three_digits($x) . ' GB/s' : $x;
}

sub read_text { open my $in, '<:raw', $_[0] or die "$_[0]: $!\n"; local $/; return <$in> }
sub write_text { open my $out, '>:raw', $_[0] or die "$_[0]: $!\n"; print $out $_[1]; close $out or die "$_[0]: $!\n" }
