# Exercises of notes/00_naive.md. What the fields mean is in common/classroom/exercise.pl.
exercise '00.1',
    ask => 'the N at which S and P of batch 4, heads 16 pass 64 GiB; and MiB of workspace of --seqlen 512 (batch 1, two heads)',
    within => 1e-4, # the first N above, or the last below
    answer => sub {
        my ($row) = program_rows(qw(--batch 1 --heads 2 --seqlen 512 --head-dim 64 --iters 1 --no-validate));
        my $bytes = $row->{workspace_bytes} / (2 * 512 * 512); # an element of one head's S and P
        return (int(sqrt(64 * 2**30 / ($bytes * 4 * 16))), $row->{workspace_bytes} / 2**20);
    };

exercise '00.2',
    ask => 'how many keys each of the six rows sees, row 0 first',
    answer => sub { # with scores next to 0, LSE is the logarithm of their number
        my @lse = saved_lse(qw(--batch 1 --heads 1 --seqlen 6 --seqlen-k 4 --causal --lengths 3 --scale 1e-9 --iters 1));
        return map { sprintf '%.0f', exp $_ } @lse;
    };

exercise '00.3',
    ask => "the sectors of a warp's request for S in naive_softmax, and the ideal",
    answer => sub {
        my ($trace) = @_;
        my ($s) = grep { $_->{kernel} eq 'naive_softmax' && ($_->{tensor} // '') eq 'S' } $trace->('--heads 1 --seqlen 256');
        return ($s->{sectors_read} / $s->{requests_read}, $s->{ideal_read} / $s->{requests_read});
    };

exercise '00.4',
    ask => "the row's sum l, and its LSE, which is -inf in a row without keys",
    blank => {file => '00_naive/naive.cu', from => "    for (int column = 0; column < p.seqlen_k; column++)\n        l += expf",
              to => 't.lse[flat_row] = '};
