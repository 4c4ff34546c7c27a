#!/usr/bin/env perl
# worked_example.t - every figure in the formulas and tables of notes/worked_example.md is right.
#
# The inputs (q, K, V, scale, dO) are read from the page. All else is computed from them here, in double, by the
# algorithms that the page goes through. Each side of each equation of an indented block is then evaluated; a name stands
# for what was computed under it. All sides must agree, and each cell of a table must.
use strict;
use warnings;
use utf8;
use List::Util qw(sum max all);
use Test::More;
binmode Test::More->builder->$_, ':utf8' for qw(output failure_output todo_output);

my @SUBSCRIPT = qw(₀ ₁ ₂ ₃ ₄);
open my $in, '<:utf8', 'notes/worked_example.md' or die "notes/worked_example.md: $!";
my $page = do { local $/; <$in> };
$page =~ s/^## Run it.*//ms;

my ($wrong, $checked) = problems($page);
is_deeply($wrong, [], 'every equation and cell is right') or diag(map { "$_\n" } @$wrong);
cmp_ok($checked, '>', 100, 'and there are many');

my ($noticed) = problems($page =~ s/(\n    [^\n]*= \d)(\d*\.?)(\d)/"$1$2" . ($3 + 1) % 10/er);
is(scalar @$noticed, 1, 'a figure that is changed is noticed') or diag(map { "$_\n" } @$noticed);
done_testing();

# ---- the page ----

# What is wrong on a page, and how much was looked at.
sub problems {
    my ($text) = @_;
    my $known = computed(inputs($text));
    my (@wrong, $count, @columns);
    for my $line (split /\n/, $text) {
        if ($line =~ /^    \S.*=/) {
            for my $equation (grep { /=/ } split /\s{2,}/, $line) {
                my @sides = split / = /, $equation =~ s/^\s+//r;
                my @values = grep { defined } map { eval { value($_, $known) } } @sides;
                $count += @sides - 1;
                my $all_known = @values == @sides;
                push @wrong, $equation if !$all_known || !all { same($values[0], $values[$_], $sides[$_]) } 1 .. $#sides;
            }
        } elsif ($line =~ /^\| (.*) \|$/) {
            my @cells = split / \| /, $1;
            if ($line =~ /---/) {
                next;
            } elsif ($cells[0] =~ /^[a-z]$/) {
                @columns = map { s/ = .*//r } @cells;
            } else {
                my $row = $columns[0] eq 'j' ? $cells[0] : value($cells[0], $known);
                for my $c (1 .. $#cells) {
                    my ($column, $cell) = ($columns[$c], $cells[$c]);
                    my $want = $columns[0] eq 'j' ? $known->{$column}[$row] : eight_bits($column, $row, $known);
                    my $is = eval { value($cell, $known) };
                    $count++;
                    push @wrong, "$column in the row of $cells[0]: $cell" if !defined $is || !same($want, $is, $cell);
                }
            }
        }
    }
    return (\@wrong, $count);
}

sub inputs {
    my ($text) = @_;
    my %given;
    for my $name ('q', 'scale', 'dO') {
        $text =~ /\b$name = (.*?)(?:\s{2,}|\n)/ or die "the page does not give $name\n";
        $given{$name} = value($1, {});
    }
    while ($text =~ /^\| [1-4] \| (\(.*?\)) \| (\(.*?\)) \| [^|]+ \| [^|]*ln/mg) {
        push @{$given{k}}, value($1, {});
        push @{$given{v}}, value($2, {});
    }
    return \%given;
}

# Equal, as far as a side that is a decimal says.
sub same {
    my ($a, $b, $side) = @_;
    return 0 if (ref $a ? 1 : 0) != (ref $b ? 1 : 0);
    return @$a == @$b && all { same($a->[$_], $b->[$_], $side) } 0 .. $#$a if ref $a;
    return abs($a - $b) < ($side =~ /\d\.(\d+)/ ? 0.51 * 10 ** -length $1 : 1e-9);
}

# ---- the algorithms ----

# What the page calls it => its value; a vector is an array; what stands in a table by key j is an array from 1 on.
sub computed {
    my ($in) = @_;
    my ($q, $scale, $do, @k, @v) = @$in{qw(q scale dO)};
    @k = @{$in->{k}}, @v = @{$in->{v}};
    my %is = (q => $q, scale => $scale, dO => $do, k => [undef, @k], v => [undef, @v]);

    # From the definition.
    my @s = map { $scale * dot($q, $_) } @k;
    my $sum = sum map { exp } @s;
    my @p = map { exp($_) / $sum } @s;
    my $o = weighted(\@p, \@v);
    @is{'q · k', 'S', 'e^S', 'P'} = map { [undef, @$_] } [map { dot($q, $_) } @k], \@s, [map { exp } @s], \@p;
    @is{'O', 'LSE'} = ($o, log $sum);
    $is{"S$SUBSCRIPT[$_]"} = $s[$_ - 1] for 1 .. 4;

    # Tile by tile: m, l, O of the tile alone; merged; and not divided, as in FlashAttention-2.
    my ($m1, $m2_alone) = (max(@s[0, 1]), max(@s[2, 3]));
    my @p1 = map { exp($_ - $m1) } @s[0, 1];
    my @p2 = map { exp($_ - $m2_alone) } @s[2, 3];
    my ($l1, $l2_alone) = (sum(@p1), sum(@p2));
    my ($pv1, $pv2) = (weighted(\@p1, [@v[0, 1]]), weighted(\@p2, [@v[2, 3]]));
    my $m2 = max($m1, $m2_alone);
    my ($alpha, $beta) = (exp($m1 - $m2), exp($m2_alone - $m2));
    my $l2 = $alpha * $l1 + $beta * $l2_alone;
    my $o1 = scaled(1 / $l1, $pv1);
    my $o2 = scaled(1 / $l2, plus(scaled($alpha * $l1, $o1), scaled($beta, $pv2)));
    my $unscaled = plus(scaled($alpha, $pv1), scaled($beta, $pv2));
    @is{'m₁', 'l₁', 'm̃₂', 'l̃₂', 'm₂', 'l₂', 'α', 'β'} = ($m1, $l1, $m2_alone, $l2_alone, $m2, $l2, $alpha, $beta);
    @is{'P̃₁', 'P̃₂', 'P̃₁ V', 'P̃₂ V', 'O₁', 'O₂', 'Õ₁', 'Õ₂'} = (\@p1, \@p2, $pv1, $pv2, $o1, $o2, $pv1, $unscaled);

    # Halves.
    my ($lse_a, $lse_b) = ($m1 + log $l1, $m2_alone + log $l2_alone);
    my $lse = log(exp($lse_a) + exp($lse_b));
    @is{'LSE_A', 'LSE_B', 'O_A', 'O_B'} = ($lse_a, $lse_b, $o1, scaled(1 / $l2_alone, $pv2));
    @is{'w_A', 'w_B'} = (exp($lse_a - $lse), exp($lse_b - $lse));

    # Gradients, from LSE.
    my $delta = dot($do, $o);
    my @dp = map { dot($do, $_) } @v;
    my @ds = map { exp($s[$_] - $is{LSE}) * ($dp[$_] - $delta) } 0 .. 3;
    $is{delta} = $delta;
    @is{'dP', 'dP − delta', 'dS', 'dK / ln 2', 'dV'} = map { [undef, @$_] } \@dp, [map { $_ - $delta } @dp], \@ds,
        [map { scaled($scale * $_ / log 2, $q) } @ds], [map { scaled($_, $do) } @p];
    $is{"dS$SUBSCRIPT[$_]"} = $ds[$_ - 1] for 1 .. 4;
    $is{dQ} = scaled($scale, weighted(\@ds, \@k));

    # e4m3.
    my $largest = max map { abs } map { @$_ } @v;
    $is{scale_V} = $largest / 448;
    my @rounded = map { [map { e4m3($_ / $is{scale_V}) * $is{scale_V} } @$_] } @v;
    $is{'Ô'} = weighted(\@p, \@rounded);
    return \%is;
}

sub eight_bits {
    my ($column, $v, $known) = @_;
    my $stored = $v / $known->{scale_V};
    my $back = e4m3($stored) * $known->{scale_V};
    my %is = ('v / scale_V' => $stored, 'rounded' => e4m3($stored), 'as a number again' => $back, 'error' => $back - $v);
    return $is{$column};
}

# The nearest number of e4m3, of two equally near the one whose last bit is 0.
sub e4m3 {
    my ($x) = @_;
    return 0 if $x == 0;
    my $exponent = int(log(abs $x) / log 2 + 1e-12);
    my $step = 2 ** (max($exponent, -6) - 3);
    my $n = abs($x) / $step;
    my $low = int($n + 1e-9);
    my $rest = $n - $low;
    $low++ if $rest > 0.5 + 1e-9 || abs($rest - 0.5) < 1e-9 && $low % 2;
    return ($x < 0 ? -1 : 1) * ($low * $step > 448 ? 448 : $low * $step);
}

sub dot { my ($a, $b) = @_; return sum map { $a->[$_] * $b->[$_] } 0 .. $#$a }
sub plus { my ($a, $b) = @_; return ref $a ? [map { $a->[$_] + $b->[$_] } 0 .. $#$a] : $a + $b }
sub scaled { my ($x, $a) = @_; return ref $a ? [map { $x * $_ } @$a] : $x * $a }

sub weighted {
    my ($weights, $rows) = @_;
    my $sum = [0, 0];
    $sum = plus($sum, scaled($weights->[$_], $rows->[$_])) for 0 .. $#$rows;
    return $sum;
}

# ---- expressions ----

# Of numbers, names, + − · /, e^x, 2^x, ln x, (a, b). What stands side by side is multiplied, two vectors by the dot
# product.
sub value {
    my ($text, $known) = @_;
    $text =~ s/^\s+|\s+$//g;
    return $known->{$text} if exists $known->{$text};
    my @tokens = $text =~ /\d+(?:\.\d+)?|[-+−·\/^(),]|\p{L}[\p{L}\p{M}_]*[₀-₄]?|\S/g;
    my $value = add(\@tokens, $known);
    die "cannot read '@tokens' in '$text'\n" if @tokens;
    return $value;
}

sub add {
    my ($t, $known) = @_;
    my $value = @$t && $t->[0] eq '−' ? (shift @$t, scaled(-1, multiply($t, $known)))[1] : multiply($t, $known);
    while (@$t && $t->[0] =~ /^[+−]$/) {
        my $sign = shift(@$t) eq '+' ? 1 : -1;
        $value = plus($value, scaled($sign, multiply($t, $known)));
    }
    return $value;
}

sub multiply {
    my ($t, $known) = @_;
    my $value = factor($t, $known);
    while (@$t && $t->[0] !~ /^[+−,)]$/) {
        my $sign = $t->[0] =~ /^[·\/]$/ ? shift @$t : '·';
        my $other = factor($t, $known);
        $value = $sign eq '/' ? scaled(1 / $other, $value) : ref $value && ref $other ? dot($value, $other)
            : ref $value ? scaled($other, $value) : scaled($value, $other);
    }
    return $value;
}

sub factor {
    my ($t, $known) = @_;
    my $token = shift @$t // die "something is missing\n";
    return log factor($t, $known) if $token eq 'ln';
    my $value;
    if ($token eq '(') {
        my @parts = add($t, $known);
        push @parts, add($t, $known) while @$t && $t->[0] eq ',' && shift @$t;
        die "a bracket is open\n" if !@$t || shift(@$t) ne ')';
        $value = @parts == 1 ? $parts[0] : \@parts;
    } else {
        $value = $token =~ /^\d/ ? $token : $token eq 'e' ? exp 1 : $known->{$token} // die "no such name: $token\n";
    }
    return $value if !@$t || $t->[0] ne '^';
    shift @$t;
    return $value ** factor($t, $known);
}
