# Exercises of notes/07_flash_decoding.md.
my $problem = '--variant split_k --batch 1 --heads 8 --kv-heads 2 --seqlen 1 --seqlen-k 2048 --head-dim 64';

exercise '07.1',
    ask => 'the bytes of K that split_k reads for 8 query heads and 2 K/V heads, 2048 keys, D = 64; and how often it reads each',
    answer => sub {
        my ($trace) = @_;
        my ($k) = grep { ($_->{tensor} // '') eq 'K' } $trace->($problem);
        return ($k->{bytes_read}, $k->{bytes_read} / $k->{unique_read});
    };

exercise '07.2',
    ask => 'LSE and O of two pieces merged, one with LSE 2 and O 1, the other with LSE 3 and O 2',
    within => 1e-3,
    answer => sub {
        my @lse = (2, 3);
        my @o = (1, 2);
        my $lse = log(exp($lse[0]) + exp($lse[1]));
        return ($lse, exp($lse[0] - $lse) * $o[0] + exp($lse[1] - $lse) * $o[1]);
    };

exercise '07.3',
    ask => 'the bytes of partial O that are written for the problem of 07.1 with --splits 8',
    answer => sub {
        my ($trace) = @_;
        return sum_of({tensor => 'partial O'}, ['bytes_written'], $trace->("$problem --splits 8"));
    };

exercise '07.4',
    ask => 'floats m, l and o of a column, all `pieces` of the row merged: the largest natural logsumexp, the sum of the weights, the weighted sum',
    variant => 'split_k',
    blank => {file => '07_flash_decoding/split_k.cu', from => 'float m = LOWEST, l = 0, o = 0;', to => "* D + column];\n    }"};
