#!/usr/bin/env perl
# mutations_host.t - tests the tests: plants mistakes in the host's code (judge, report, timing, memory, files, options), by fixed
# operators at sites that a seed chooses, and demands that what `make test` runs catches 95 % of them.
#
#     make mutations                                  SEED=1 MUTANTS=200
#     make mutations-host MUTANT=common/judge/compare.c:41    all mistakes of one line (or file), and what catches each
#
# The operators: a comparison becomes its neighbor, + becomes -, a constant is doubled, 1 alone becomes 0, a condition is fixed, a statement goes, an
# index is one further. A mutant is one changed file, compiled again; the programs that link it are linked again when a test needs
# them. The tests run in order of cheapness and end at the first failure, or when they have taken $patience seconds: the dear ones
# are left out, which can only let a mistake pass. A mutant that does not compile does not count, nor one from which the compiler
# makes the same code; one that hangs is caught. Where a mistake changes nothing none is planted: how large an array is, which of
# two equal numbers is the smaller one, and what takes more of the host's memory or gives it back.
use strict;
use warnings;
use Digest::MD5 qw(md5_hex);
use FindBin;
use lib $FindBin::Bin;
use Scratch;
use Test::More;
use Time::HiRes qw(time);

my $build = $ENV{TEST_BUILD} || 'build/cpu';
my $seed = $ENV{SEED} // 1;
my $only = $ENV{MUTANT};
my $wanted = 0.95;
my $limits = 'mkdir -p build/tmp; export TMPDIR=$PWD/build/tmp; ulimit -v 8000000;'; # a mutant could take all memory there is
my $patience = 40; # seconds of a core

my @sites = sort { $a->{key} cmp $b->{key} } map { sites_of($_) } glob 'common/{harness,judge,host}/*.c';
@sites = grep { !defined $only || index("$_->{file}:$_->{line} ", $only =~ /:/ ? "$only " : $only) == 0 } @sites;
@sites or BAIL_OUT("MUTANT=$only: nothing there can be changed");
my $slots = defined $only ? @sites : $ENV{MUTANTS} // 200;
my ($compile, $archive, $links, @tests) = what_make_knows();

# Where nothing is changed nothing may be caught, else all that follows would be worth nothing.
my %seconds = map { $_ => 600 } @tests;
from_copies($build, sub { ($_[0], timed(\&is_caught, $_[0])) }, sub {
    my ($test, $seconds, $is_caught) = @_;
    $is_caught and BAIL_OUT("$test fails where nothing is changed");
    $seconds{$test} = $seconds;
}, @tests);

# A slot takes the first of its sites that compiles to something else. So the choice depends on nothing but the seed.
my (%count, %catcher, %caught_by);
from_copies($build, \&try_slot, sub {
    my ($site, $seconds, $verdict, $test) = @_ or return;
    $count{$verdict}++;
    $catcher{$test}++ if $verdict eq 'caught';
    my $what = sprintf '%s:%d: %s%s, %.1f s', @$site{'file', 'line'}, $verdict, $test ? " by $test" : '', $seconds;
    my $diff = "- $site->{from}\n+ $site->{to}";
    $verdict eq 'survives' ? diag("$what\n$diff") : note("$what\n$diff");
}, 0 .. $slots - 1);
my ($caught, $survive) = map { $count{$_} // 0 } 'caught', 'survives';
diag(sprintf 'seed %s: %d caught, %d survive; %s', $seed, $caught, $survive,
    join ', ', map { "$_ $catcher{$_}" } sort { $catcher{$b} <=> $catcher{$a} || $a cmp $b } keys %catcher);
cmp_ok($caught, '>=', $wanted * ($caught + $survive), sprintf('%g %% of the mistakes are caught', 100 * $wanted));
done_testing;

# ---- what may be changed ----

# All sites of a file, each with the text that takes its place.
sub sites_of {
    my ($file) = @_;
    my $text = read_file($file);
    # The code alone: comments, strings and what the preprocessor reads are blanks of the same length.
    my $code = $text =~ s{(/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|^[ ]*\#(?:[^\n]*\\\n)*[^\n]*)}
                         {$1 =~ s/[^\n]/ /gr}gmserx;
    my (@sites, %seen);
    my $add = sub {
        my ($from, $to, $new) = @_;
        my $begin = 1 + rindex $text, "\n", $from - 1;
        my $end = index $text, "\n", $to - 1;
        my ($before, $after) = (substr($text, $begin, $from - $begin), substr($text, $to, $end - $to));
        my %site = (file => $file, line => 1 + (substr($text, 0, $from) =~ tr/\n//), offset => $from, length => $to - $from,
            new => $new, from => squeezed(substr $text, $begin, $end - $begin), to => squeezed("$before$new$after"));
        my $what = join "\n", @site{qw(file from to)};
        $site{key} = md5_hex(join "\n", $seed, $what, $seen{$what}++ // 0);
        push @sites, \%site;
    };
    my %other = ('<' => '<=', '<=' => '<', '>' => '>=', '>=' => '>', '==' => '!=', '!=' => '==', '+' => '-', '-' => '+');
    while ($code =~ /\s(<=|>=|==|!=|<|>|[-+](?==?\s))/g) {
        my ($from, $to, $operator) = ($-[1], $+[1], $1);
        next if is_smaller_one(substr($code, 0, $from), substr($code, $to)) || substr($code, 0, $from) =~ /sizeof \w+ \z/ || is_size(substr($code, 0, $from));
        $add->($from, $to, $other{$operator});
    }
    while ($code =~ /(?<![\w.])((?:0x[\da-f]+(?:p[-+]?\d+)?|\d+(?:\.\d*)?(?:e[-+]?\d+)?)[fulFUL]*)(?![\w.])/g) {
        my ($from, $to, $constant) = ($-[1], $+[1], $1);
        next if $constant !~ /[1-9]/ || is_size(substr($code, 0, $from)) || substr($code, 0, $from) =~ /\b(?:host_|c)alloc\([^;]*\z/;
        my $alone = $constant eq '1' && substr($code, 0, $from) =~ /(?: = |[(,] ?)\z/ && substr($code, $to) =~ /\A[;,)}]/;
        $add->($from, $to, $alone ? 0 : "(2 * $constant)");
    }
    my $balanced = qr/(\((?:[^()]++|(?-1))*+\))/;
    my $simple = qr/(?:[^?;(){},=:]|[=!<>]=|\([^()]*\))+/;
    while ($code =~ /\bif $balanced|(?:return|(?<![=!<>])=|\(|,) ($simple?) \?/g) {
        my ($from, $to) = defined $2 ? ($-[2], $+[2]) : ($-[1], $+[1]);
        $add->($from, $to, '(' . substr($text, $from, $to - $from) . ", $_)") for 0, 1; # what it does besides is still done
    }
    $add->($-[1], $+[1], ';') while $code =~ /\{ (?!return )([^;{}=]*;) \}\n/g; # all of a function
    while ($code =~ /(?<=[;{}:)])\s*\n\s*((?!(?:return [^;]|static|const|typedef|enum|struct|else|for|while|if|do|switch|case)\b)
                     [a-zA-Z*(][^;{}]*;)(?=\s*\n)/gx) {
        my ($from, $to, $statement) = ($-[1], $+[1], $1);
        pos($code) = $to - 1;
        $add->($from, $to, ';') if $statement !~ /\A(?:(?:options_)?free(?:_samples|_gradients)?|close)\(/ && $statement !~ /\A\w+\s+\**\w+(?:\[[^\]]*\])*\s*[=;,]/; # a declaration
    }
    while ($code =~ /(?<=[\w\])])\[([^\[\]]+)\]/g) {
        my ($begin, $end) = ($-[0], $+[1]);
        $add->($end, $end, ' + 1') if !is_size(substr($code, 0, $begin + 1));
    }
    return @sites;
}

# Whether an array's declaration ends in the middle of its size.
sub is_size {
    my ($before) = @_;
    return 1 if $before =~ /^\} \w+\[[^\[\]]*\z/m;
    return $before =~ /(?:\A|[;{}(])\s*(?:(?:static|const|unsigned)\s+)*(?!(?:return|else|case|goto)\b)[a-zA-Z]\w*\s+
                       (?:\**\w+(?:\[[^\[\]]*\])*\s*(?:=[^;{}()\[\]]*)?,\s*)*\**(?:const\s+)?\w+(?:\[[^\[\]]*\])*\[[^\[\]]*\z/x;
}

# Whether what stands around a comparison is x < y ? x : y, or the larger one.
sub is_smaller_one {
    my ($before, $after) = @_;
    return 1 if $before =~ /return \(x \z|\(x > y\) - \(x \z/; # what qsort asks
    my ($x) = $before =~ /\(?([^\s(]\S*) \z/ or return 0;
    my ($y, $yes, $no) = $after =~ /\A (\S[^?;]*?) \? (?:\(\w+\))?(\S[^?:;]*?) :\s+([^;]*)/ or return 0;
    return 1 if $yes eq "$x - $y" && $no eq '0';
    return $yes eq $x && $no =~ /\A\Q$y\E(?:[,)]|\z)/ || $yes eq $y && $no =~ /\A\Q$x\E(?:[,)]|\z)/;
}

sub squeezed { return $_[0] =~ s/\s+/ /gr =~ s/\A | \z//gr }

# ---- what catches them ----

# How make compiles each of the files, puts it into its library and links the programs, and the tests it would run; not those of
# make itself and of the labs, which build much, nor the grids, which are the kernels', nor flash.c's, which has no file of these.
sub what_make_knows {
    my (%compile, %archive, %links, @tests);
    for my $file (map { $_->{file} } @sites) {
        next if $compile{$file};
        for (split /\n/, `env -u MAKEFLAGS -u MAKELEVEL make -n V=1 DEVICE=cpu -W $file test-device` =~ s/\\\n//gr) {
            s/(\S+)\.\$\$(.*) && +mv .*/$1$2/; # here nobody else is at work in the folder
            $compile{$file} = $_ if / -c \Q$file\E -o /;
            $archive{$file} = $_ if /\bar rcs .*\/\Q$file\E\.o\b/;
            $links{$file}{$1} = $_ if / -lm -o (\S+)/;
            @tests = grep { /^tests\/(?!make|adding_a_stage|labs|flash)|^\Q$build\E(?!.*\/grid_)/ } split ' ', $1 if /\bprove\.pl (.*)/;
        }
    }
    return (\%compile, \%archive, \%links, @tests);
}

sub try_slot {
    my ($slot) = @_;
    for (my $i = $slot; $i < @sites; $i += $slots) {
        my ($seconds, @result) = timed(\&try, $sites[$i]);
        return ($sites[$i], $seconds, @result) if @result;
    }
    return;
}

# The seconds of a core that a function took, and what it returns.
sub timed {
    my ($function, @arguments) = @_;
    my @begin = times;
    my @result = $function->(@arguments);
    my @end = times;
    return ($end[2] + $end[3] - $begin[2] - $begin[3], @result);
}

# Returns the verdict, and what caught it; nothing if it does not count.
sub try {
    my ($site) = @_;
    my ($file, $object) = ($site->{file}, $compile->{$site->{file}} =~ / -o (\S+)/);
    my $text = read_file($file);
    my ($library) = $archive->{$file} =~ /ar rcs (\S+)/;
    my @changed = ($file, $object, $library);
    my ($command, $same) = ("$compile->{$file} -O1 -g0 -w 2>/dev/null", "$object.same"); # the unchanged file, compiled likewise
    system("cp -p $object $object.kept && $command && mv $object $same && mv $object.kept $object") == 0 or die "$file: $!" if !-e $same;
    rename $_, "$_.kept" or die "$_: $!" for @changed;
    substr($text, $site->{offset}, $site->{length}) = $site->{new};
    write_file($file, $text);
    my @result;
    if (system($command) == 0 && system("cmp -s $object $same") != 0) {
        system($archive->{$file}) == 0 or die "$library: $!";
        # A test that has caught a mistake in this file is likely to catch more.
        my %worth = map { $_ => (1 + ($caught_by{$file}{$_} // 0)) / (0.05 + ($seconds{$_})) } @tests;
        my $left = $patience;
        @result = ('survives', '');
        for my $test (sort { $worth{$b} <=> $worth{$a} } @tests) {
            my $words = $test =~ /\.t$/ ? read_file($test) : $test;
            next if !grep { needs($words, $_) } keys %{$links->{$file}};
            my @programs = grep { !-e "$_.kept" && needs($words, $_) } sort keys %{$links->{$file}};
            for my $program (@programs) {
                rename $program, "$program.kept" or die "$program: $!";
                push @changed, $program;
                system("$links->{$file}{$program} 2>/dev/null");
                delete $links->{$file}{$program} if system("cmp -s $program $program.kept") == 0; # it does not hold the file
            }
            next if !grep { needs($words, $_) } keys %{$links->{$file}};
            last if ($left -= $seconds{$test}) < 0;
            next if !is_caught($test);
            $caught_by{$file}{$test}++;
            @result = ('caught', $test);
            last;
        }
    }
    rename "$_.kept", $_ or die "$_: $!" for @changed;
    return @result;
}

# Whether a test, itself a program or a script with these words, runs this program, which is a test or a stage's. Some scripts run
# all stages.
sub needs {
    my ($words, $program) = @_;
    return $words eq $program if $words !~ /\n/;
    my ($name) = $program =~ /(\/tests\/\w+|\w+)$/;
    return index($words, $name) >= 0 || $name !~ /\// && $words =~ /\bstages\(\)/;
}

sub is_caught {
    my ($test) = @_;
    my $child = open(my $output, '-|') // die "fork: $!";
    if (!$child) {
        setpgrp;
        open STDERR, '>', '/dev/null';
        my $limit = int(5 + 3 * $seconds{$test});
        exec "$limits ulimit -t $limit; exec $test --quick";
    }
    my $bad = 0;
    local $SIG{ALRM} = sub { $bad = 1; kill 'KILL', -$child };
    alarm 60 + 10 * $seconds{$test}; # for one that waits; one that runs on has its limit
    while (<$output>) {
        next if !/^not ok/;
        $bad = 1;
        kill 'KILL', -$child;
    }
    close $output; # waits
    alarm 0;
    return $bad || $? != 0;
}
